// FolderSource: a page source in a folder, for processes of one machine or of one file system. Each
// object is one file.
#ifndef WAYMARK_PLUGIN_SOURCES_FOLDER_SOURCE_H_
#define WAYMARK_PLUGIN_SOURCES_FOLDER_SOURCE_H_

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "blockstore/wire/page_source.h"

namespace waymark {

struct FolderOptions {
  std::string path;  // a relative one is taken from where the process is now
  // Of all objects in the folder; 0: no limit. A source looks at the folder at its first Put and
  // after each tenth of this that it has put; beyond the limit it deletes the oldest objects until
  // nine tenths are left. So one source may exceed it by one Put, n by n tenths. Meanwhile it needs
  // 56 bytes of memory an object.
  std::uint64_t max_bytes = 0;
  // How long after its last Put or Holds an object is absent, and deleted when a source meets it;
  // 0: never, and a year at most. By the clocks of the file system and of this machine.
  std::chrono::seconds time_to_live{0};
};

// The file of an object has the digest's name, in 32 hexadecimal digits, lowest byte first, with a
// '/' after two. It is written in the folder `waymark.new` and then linked (the file system must
// have hard links), so that readers never see a part, and of several objects under one digest the
// first stays. Links, folders and empty files are no objects. Nothing is synced: after a loss of
// power readers may find damaged objects until they expire.
//
// Files have mode 0600 and folders that it makes 0700, because routes nearly reveal prompts. Files
// in `waymark.new` that are older than 10 minutes, which dead processes left, are deleted; files
// that other programs made elsewhere never are.
//
// Deadlines are checked between files. A file system that does not answer, such as NFS without its
// server, blocks a call for longer.
class FolderSource : public wire::PageSource {
 public:
  // Does not touch the folder; Check and Put make it, but not its parents. InvalidArgument naming
  // the option, the rule and the value. The calls of wire::PageSource also return Unavailable with
  // the path and the system's message, for a full disk, too.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<FolderSource>> Create(
      const FolderOptions& options);
};

}  // namespace waymark

#endif  // WAYMARK_PLUGIN_SOURCES_FOLDER_SOURCE_H_
