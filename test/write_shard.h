// write_shard.h: a shard of given tokens, and the tokens of a shard
#pragma once
#include <string>
#include <vector>

#include "temporary_folder.h"
#include "trainer/data/token_shard.h"

// Returns its path.
inline std::string write_shard(const TemporaryFolder& folder, const std::string& name,
                               const std::vector<Token>& tokens) {
    TokenShardWriter writer(folder / name);
    writer.append(tokens);
    writer.commit();
    return folder / name;
}

inline std::vector<Token> tokens_in(const std::string& path) { return TokenShard(path).tokens(); }
