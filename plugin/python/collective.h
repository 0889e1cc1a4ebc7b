// The all_gather of a Python object, as a Collective.
#ifndef WAYMARK_PLUGIN_PYTHON_COLLECTIVE_H_
#define WAYMARK_PLUGIN_PYTHON_COLLECTIVE_H_

#include <memory>

#include "plugin/capture/collective.h"
#include "plugin/python/capture.h"
#include "plugin/python/core.h"

namespace waymark_python {

// Calls `all_gather(bytes)`, with the GIL, on the thread that gathers. An exception becomes a
// status: DeadlineExceeded of a TimeoutError, Unavailable of an OSError (ConnectionError), Unknown
// of any other; what it says is logged, each text once in a row. Needs the GIL.
[[nodiscard]] waymark::Collective CollectiveOf(nb::object all_gather, std::int32_t rank,
                                               std::int32_t ranks, std::shared_ptr<LogLines> log);

}  // namespace waymark_python

#endif  // WAYMARK_PLUGIN_PYTHON_COLLECTIVE_H_
