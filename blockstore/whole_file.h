// Whole files: read into memory, and written so that no reader sees half of one.
#ifndef WAYMARK_BLOCKSTORE_WHOLE_FILE_H_
#define WAYMARK_BLOCKSTORE_WHOLE_FILE_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace waymark {

// All bytes of a file or a pipe. NotFound with the system's message if it cannot be read;
// ResourceExhausted if it has more than `limit` bytes. Errors name the path.
[[nodiscard]] absl::StatusOr<std::string> ReadWholeFile(const std::string& path, std::size_t limit);

// Writes the file `path`.partial, then renames it to `path`; not synced to disk. Unavailable naming
// the path, with the system's message, if that fails; `path` is then unchanged, and the other file
// is removed.
[[nodiscard]] absl::Status WriteWholeFile(const std::string& path, std::string_view bytes);

}  // namespace waymark

#endif  // WAYMARK_BLOCKSTORE_WHOLE_FILE_H_
