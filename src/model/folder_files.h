// The files beside the weights of a folder, which are copied to another.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace octofold::model {

/// Throws Error(kInvalidArgument) for the folder of a pipeline of Diffusers, whose models lie in
/// folders of their own, and says how each is taken.
void require_one_model(std::string_view operation, const std::filesystem::path& folder);

/// Copies all files of a folder and those below it: not its weights, weights in other formats,
/// what the family describes anew (config.json, hf_quant_config.json), folders of caches (.git,
/// .cache), nor `target` itself where it lies in the folder. Weights in other formats are logged.
/// weights: names of the files that were read. Returns paths relative to the folder.
std::vector<std::filesystem::path> copy_along(const std::filesystem::path& folder,
                                              const std::filesystem::path& target,
                                              const std::set<std::string>& weights);

}  // namespace octofold::model
