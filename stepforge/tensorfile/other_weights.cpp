// SPDX-License-Identifier: Apache-2.0
#include "stepforge/tensorfile/other_weights.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <system_error>

#include "stepforge/base/error.h"
#include "stepforge/base/format.h"
#include "stepforge/base/json.h"

namespace stepforge {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kMerge =
    "name the model, and the adapter with --adapter or adapter.from, or merge them: stepforge export MODEL "
    "NEW_FOLDER --adapter FOLDER --merge";
constexpr std::string_view kSaveAgain =
    "which are not read, because they can run code; write safetensors, with transformers: "
    "AutoModelForCausalLM.from_pretrained(FOLDER, dtype=\"auto\").save_pretrained(NEW_FOLDER)";
constexpr std::string_view kDownload =
    "download the safetensors of the original model, as transformers reads them";

/// Files that other programs read, in the order in which they explain a folder.
struct OtherFiles {
  std::string_view begin;
  std::string_view end;  ///< of the name, in small letters
  std::string_view what;
  std::string_view remedy;
};

constexpr std::array kOtherFiles = {
    OtherFiles{"adapter_", ".bin", "holds only an adapter (LoRA)", kMerge},
    OtherFiles{"pytorch_model", ".bin", "holds its weights as pickles of PyTorch", kSaveAgain},
    OtherFiles{"pytorch_model", ".bin.index.json", "holds its weights as pickles of PyTorch", kSaveAgain},
    OtherFiles{"consolidated", ".pth", "holds the original weights of Llama, with other names",
               "download the safetensors, or convert them with transformers' convert_llama_weights_to_hf.py"},
    OtherFiles{"consolidated", ".safetensors", "holds the original weights of Mistral, with other names",
               "download the files model*.safetensors of the same model"},
    OtherFiles{"", ".gguf", "holds the quantized weights of llama.cpp (GGUF), which are not read", kDownload},
    OtherFiles{"", ".distcp", "holds a distributed checkpoint of PyTorch, which is not read",
               "write safetensors with the program that saved it"},
    OtherFiles{"", ".pth", "holds weights as pickles of PyTorch", kSaveAgain},
    OtherFiles{"", ".pt", "holds weights as pickles of PyTorch", kSaveAgain},
    OtherFiles{"", ".ckpt", "holds weights as pickles of PyTorch", kSaveAgain},
    OtherFiles{"", ".bin", "holds weights as pickles of PyTorch", kSaveAgain},
    OtherFiles{"", ".msgpack", "holds weights of Flax, which are not read", kDownload},
    OtherFiles{"", ".h5", "holds weights of TensorFlow, which are not read", kDownload},
    OtherFiles{"", ".npz", "holds weights of MLX or NumPy, which are not read", kDownload},
    OtherFiles{"", ".onnx", "holds an ONNX program, which is not read", kDownload},
};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return text;
}

/// The base model of the adapter in a folder: " of meta-llama/Llama-3-8B", or "".
std::string base_of_adapter(const fs::path& config) {
  try {
    const Json json = read_json_file(config);
    return " of " + json.at("base_model_name_or_path").get<std::string>();
  } catch (const std::exception&) {
    return "";
  }
}

}  // namespace

std::string other_weights_in(const fs::path& path) {
  std::error_code failure;
  std::vector<std::string> names;
  if (fs::is_directory(path, failure)) {
    if (const fs::path config = path / "adapter_config.json"; fs::exists(config, failure)) {
      return format("holds only an adapter (LoRA){}, not a model; {}", base_of_adapter(config), kMerge);
    }
    for (const auto& entry : fs::directory_iterator(path, failure))
      names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
  } else {
    names.push_back(path.filename().string());
  }
  for (const OtherFiles& files : kOtherFiles) {
    for (const std::string& name : names) {
      const std::string small = lower(name);
      if (!small.starts_with(files.begin) || !small.ends_with(files.end)) continue;
      // Trainers write these beside any weights.
      if (small == "training_args.bin" || small == "optimizer.pt" || small == "scheduler.pt") continue;
      return format("{} ({}); {}", files.what, name, files.remedy);
    }
  }
  return "";
}

std::string other_weights_named(const std::vector<std::string>& names) {
  const auto first_with = [&](std::initializer_list<std::string_view> parts) -> const std::string* {
    const auto found = std::find_if(names.begin(), names.end(), [&](const std::string& name) {
      return std::any_of(parts.begin(), parts.end(),
                         [&](std::string_view part) { return name.find(part) != std::string::npos; });
    });
    return found == names.end() ? nullptr : &*found;
  };
  if (const std::string* name =
          first_with({".lora_A.", ".lora_B.", ".lora_embedding_", ".lora_magnitude_vector"}))
    return format("holds an adapter (LoRA) that is not merged into the weights ({}); {}", *name, kMerge);
  if (const std::string* name =
          first_with({".qweight", ".qzeros", ".weight.absmax", ".weight.quant_state"})) {
    return format("holds quantized weights (GPTQ, AWQ or bitsandbytes: {}), which are not read; {}", *name,
                  kDownload);
  }
  return "";
}

}  // namespace stepforge
