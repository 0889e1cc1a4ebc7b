#include <cstdio>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "adapters/cli/command.h"
#include "adapters/cli/console.h"
#include "adapters/cli/routing_input.h"
#include "adapters/formats/formats.h"
#include "blockstore/invalid.h"
#include "blockstore/whole_file.h"
#include "blockstore/wire/document_writer.h"

namespace waymark::cli {
namespace {

// InvalidArgument naming the first of these options that was given.
absl::Status Refuse(std::initializer_list<std::pair<const char*, bool>> options,
                    const std::string& why) {
  for (const auto& [option, given] : options)
    if (given) return Invalid(option, why);
  return absl::OkStatus();
}

class ConvertCommand final : public Command {
 public:
  ConvertCommand()
      : Command("convert", "Convert routing from one format to another, and report what is lost") {}
  void AddOptions(CLI::App& app) override {
    app.add_option("IN", in_, "A Waymark document, or routing of another format")->required();
    app.add_option("OUT", out_, "The file to write")->required();
    app.add_option("--to", to_,
                   "The format to write: waymark, npy, vllm, vllm-lists, sglang, megatron, "
                   "megatron-ndarray, nemo-rl")
        ->type_name("FORMAT")
        ->required();
    AddInputOptions(app, "--from", input_);
    app.add_option("--to-rows", to_rows_, "As --rows, of OUT")
        ->check(CLI::IsMember({"tokens", "tokens-1"}));
    app.add_option("--to-layers", to_layers_, "As --layers, of OUT")
        ->check(CLI::IsMember({"moe", "all"}));
    app.add_option("--to-sentinel", to_sentinel_, "The ids of a missing row in OUT")
        ->check(CLI::IsMember({"none", "-1", "255", "65535", "zeros", "arange"}));
    app.add_option("--to-dtype", to_dtype_, "Type of the ids of OUT, e.g. uint8")
        ->type_name("DTYPE");
    app.add_option("--to-codec", to_codec_,
                   "Encoding of a Waymark document: raw, unchanged; sorted, ids ascending; set, "
                   "in fewer bits, ids ascending [raw]")
        ->check(CLI::IsMember({"raw", "sorted", "set"}));
    app.add_option("--to-page-tokens", to_page_tokens_,
                   "Rows per page of a Waymark document, the smallest unit that is read [those of "
                   "IN, or 16]")
        ->type_name("ROWS")
        ->check(CLI::Range(1, 4096));
    app.add_option("--to-crc-layers", to_crc_layers_,
                   "Layers that share a crc in a Waymark document; readers of some layers read all "
                   "that share one with them [a quarter of the layers]")
        ->type_name("LAYERS")
        ->check(CLI::Range(1, 1024));
    app.footer(
        "Options without --to- describe IN where its bytes do not; most have a default.\n"
        "What OUT does not preserve is reported on stderr. A row that is missing is refused "
        "unless\n"
        "the format or --to-sentinel marks it; zeros and arange are marks that are also routes.\n"
        "Exits 0, or 2 if a file or an option cannot be used; OUT is then unchanged.");
  }

  ExitCode Run() override {
    if (SameFile(in_, out_)) {
      return Fail(name(), "OUT must be another file than IN; both are '" + out_ + "'");
    }
    RoutingFile file;
    const absl::Status status = Convert(file);
    if (!status.ok()) return Fail(name(), std::string(status.message()));
    for (const std::string& note : file.notes)
      std::fprintf(stderr, "note: %s\n", note.c_str());
    std::printf("'%s': %s, %s rows of %d layers, %s bytes\n", out_.c_str(), to_.c_str(),
                Count(file.rows.size()).c_str(), file.rows.shape.num_layers,
                WithCommas(std::filesystem::file_size(out_)).c_str());
    return kExitOk;
  }

 private:
  // `file`: becomes IN, with notes on what OUT lacks, too.
  absl::Status Convert(RoutingFile& file) {
    const bool document = to_ == formats::kDocumentName;
    formats::WriteRowsOptions options;
    std::optional<formats::Format> format;
    for (const absl::Status& status :
         {document ? absl::OkStatus() : formats::SetNamed("--to", to_, format),
          formats::SetNamed("--to-rows", to_rows_, options.row_count),
          formats::SetNamed("--to-layers", to_layers_, options.layers),
          formats::SetNamed("--to-sentinel", to_sentinel_, options.sentinel),
          formats::SetNamed("--to-dtype", to_dtype_, options.dtype)}) {
      if (!status.ok()) return status;
    }
    absl::StatusOr<RoutingFile> read = LoadRouting(in_, input_, {.assume_experts = true});
    if (!read.ok()) return read.status();
    file = *std::move(read);
    const bool numbers =
        document || options.layers.value_or(formats::InfoOf(*format).conventions.layers) ==
                        formats::LayerAxis::kAllLayers;
    if (numbers && !file.layers_known) {
      return Invalid("--moe-layers is required: ", to_, " has the numbers of layers, IN does not");
    }
    if (document) return WriteDocument(file);
    const absl::Status refused = Refuse({{"--to-codec", !to_codec_.empty()},
                                         {"--to-page-tokens", to_page_tokens_ != 0},
                                         {"--to-crc-layers", to_crc_layers_ != 0}},
                                        " is for Waymark documents; OUT is " + to_);
    if (!refused.ok()) return refused;
    options.format = *format;
    // A conversion to the same format keeps the dtype.
    if (!options.dtype.has_value() && file.name == to_) options.dtype = file.dtype;
    options.num_layers = input_.num_layers;
    options.limits.max_bytes = static_cast<std::size_t>(input_.max_memory_mb) << 20;
    const absl::StatusOr<formats::WriteRowsResult> written = formats::WriteRows(file.rows, options);
    if (absl::IsFailedPrecondition(written.status())) {  // missing rows, and no sentinel
      return Invalid(written.status().message(), " with --to-sentinel");
    }
    if (!written.ok()) return written.status();
    file.notes.insert(file.notes.end(), written->notes.begin(), written->notes.end());
    return WriteWholeFile(out_, written->bytes);
  }

  absl::Status WriteDocument(RoutingFile& file) const {
    const absl::Status refused = Refuse({{"--to-rows", !to_rows_.empty()},
                                         {"--to-layers", !to_layers_.empty()},
                                         {"--to-sentinel", !to_sentinel_.empty()},
                                         {"--to-dtype", !to_dtype_.empty()}},
                                        " is for arrays; OUT is a Waymark document");
    if (!refused.ok()) return refused;
    if (!file.experts_known) {
      return Invalid("--experts is required: a Waymark document contains it, and IN does not");
    }
    if (to_page_tokens_ != 0) file.rows.shape.page_tokens = to_page_tokens_;
    if (to_crc_layers_ > file.rows.shape.num_layers) {
      return Invalid("--to-crc-layers must be in [1, ", file.rows.shape.num_layers, "]; it is ",
                     to_crc_layers_);
    }
    wire::DocumentOptions options;
    if (to_codec_ == "set") options.code = wire::ChunkCode::SetCodeFor(file.rows.shape);
    if (to_codec_ == "sorted") options.code.ordered = false;
    options.code.crc_layers = to_crc_layers_;
    if (!options.code.ordered && file.rows.ordered) {
      file.notes.emplace_back("the order of the experts within a layer is not kept");
    }
    const absl::StatusOr<wire::DocumentWriter> writer =
        wire::DocumentWriter::Create(file.rows, options);
    if (!writer.ok()) return writer.status();
    return writer->WriteFile(out_);
  }

  std::string in_;
  std::string out_;
  std::string to_;
  InputOptions input_;
  std::string to_rows_;
  std::string to_layers_;
  std::string to_sentinel_;
  std::string to_dtype_;
  std::string to_codec_;
  std::int32_t to_page_tokens_ = 0;
  std::int32_t to_crc_layers_ = 0;
};

}  // namespace

std::unique_ptr<Command> MakeConvertCommand() {
  return std::make_unique<ConvertCommand>();
}

}  // namespace waymark::cli
