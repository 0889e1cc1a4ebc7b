// What the demo's conversations are about: an opening that all share, a question for each group of
// samples, and the user's texts in later turns. Plain ASCII, written for this tool. The model's
// tokens are bytes, so other texts mean other prompt lengths, and other figures of the demo
// (README.md).
#ifndef WAYMARK_ADAPTERS_CLI_DEMO_TEXT_H_
#define WAYMARK_ADAPTERS_CLI_DEMO_TEXT_H_

#include <array>
#include <string_view>

namespace waymark::cli {

// Every conversation begins with it: a prefix that the cache shares across groups.
inline constexpr std::string_view kDemoOpening =
    "You are the keeper of a small library on a cold coast. People walk a long way to ask you "
    "things. Answer in few words, say what you do not know, and never send anybody home with a "
    "wrong map.\n\n";

// Group i asks question i % 8. From group 8 on, i / 8 + 1 stands before it ("2. "), so that no two
// groups ask the same.
inline constexpr std::array<std::string_view, 8> kDemoQuestions = {
    "Why do old paths over the fell have heaps of stones beside them, and who still adds to the "
    "heaps? My grandmother told me to put one stone on each and to take none away.",
    "The harbour light goes dark for one breath in every nine. A sailor told me that each light on "
    "this coast has a rhythm of its own. How would I learn them without going to sea?",
    "I found a letter in the wall of my house. It has two dates on it, eleven days apart, for the "
    "same afternoon. How can one afternoon have two dates, and which of them should I believe?",
    "The miller wants to know how much grain a wheel of twelve feet can grind in a winter's day "
    "when the brook is half frozen. He has a ladle, a rope of known length and a good clock.",
    "My brother keeps bees. This spring one hive is silent and full of honey, and the one next to "
    "it is loud and starving. What should he look at first, and what must he leave alone?",
    "We are seven at the table and have one pot of soup, a spoon that holds too little, and a rule "
    "that the youngest eats first. In which order should we sit so that nobody waits in vain?",
    "The tide book for this year was printed before the new breakwater. Every evening the water "
    "comes a little earlier than it says. Can I mend the book, or do I have to measure it all?",
    "A map of the marsh, made by my uncle, marks a dry road that nobody has ever seen. He was an "
    "honest man and he could not swim. Where did he walk, and at what time of the year?",
};

// What the user says after each completion but the last, in this order, then from the start again.
inline constexpr std::array<std::string_view, 4> kDemoFollowUps = {
    "\n\nI have written that down. Now tell it again for a child who has never seen the sea.\n",
    "\n\nSomebody at the inn says the opposite. What would you have to see to change your mind?\n",
    "\n\nGood. And what was the mistake that people made before they knew this?\n",
    "\n\nOne more thing before the ferry leaves: what should I ask the next keeper?\n",
};

}  // namespace waymark::cli

#endif  // WAYMARK_ADAPTERS_CLI_DEMO_TEXT_H_
