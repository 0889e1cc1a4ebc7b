// WAYMARK_STEP_PATH: marks the functions that a step runs on the engine's thread.
//
// Between two steps the engine's forward empties the caches and the TLB. What a step then costs is
// the number of pages and cache lines that it touches, not its instructions. The linker puts the
// functions with this mark next to each other, instead of into a page for each source file.
#ifndef WAYMARK_BLOCKSTORE_STEP_PATH_H_
#define WAYMARK_BLOCKSTORE_STEP_PATH_H_

#define WAYMARK_STEP_PATH [[gnu::hot]]

#endif  // WAYMARK_BLOCKSTORE_STEP_PATH_H_
