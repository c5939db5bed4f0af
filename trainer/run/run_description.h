// run_description.h: the run's description in the first line of metrics.jsonl, and the description that
// must be equal on all ranks.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "system/version.h"
#include "trainer/data/data_files.h"
#include "trainer/model/gpt2.h"
#include "trainer/run/options.h"
#include "trainer/run/peaks.h"
#include "trainer/run/resume.h"

template <class T>
nlohmann::json run_description(const Options& o, const GPT2<T>& model, const std::string& device,
                               const MatmulPeak& peak, int steps, const ResumePoint& from) {
    nlohmann::json description = {
        {"options", o.values},
        {"model",
         {{"layers", o.model.config.L},
          {"heads", o.model.config.NH},
          {"channels", o.model.config.C},
          {"context", o.model.config.context},
          {"vocab", o.model.config.V},
          {"parameters", model.table().parameters()}}},
        {"batch",
         {{"batch_size", o.batch.size},
          {"seq_len", o.batch.seq_len},
          {"micro_steps", o.accumulation()},
          {"total_batch", o.batch.total},
          {"processes", o.world_size}}},
        {"steps", steps},
        {"machine", device},
        {"mfu_peak", {{"flops_per_second", peak.flops_per_second}, {"measured", peak.measured}}},
        {"versions", {{"flatgpt", version}, {"compiler", __VERSION__}}}};
    if (!from.checkpoint.empty()) description["resumed_from"] = from.step();
    return description;
}

// Program, options and data, which must be equal on all ranks; otherwise they would train different models.
inline nlohmann::json process_description(const Options& o, const nlohmann::json& identity,
                                          const DataSplits& data) {
    nlohmann::json files = nlohmann::json::array();
    for (const auto* split : {&data.train, &data.val}) {
        for (const TokenShard& shard : *split)
            files.push_back({{"name", std::filesystem::path(shard.name()).filename().string()},
                             {"tokens", shard.size()}});
    }
    return {{"version", version},
            {"options", o.values},
            {"batch_size", o.batch.size},
            {"data", identity},
            {"files", files}};
}
