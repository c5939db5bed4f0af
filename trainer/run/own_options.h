// own_options.h: --resume PATH alone goes on as the run was: options that the command line leaves out have
// the values in the checkpoint's state.json. Not for .cu files (command_line.h).
#pragma once
#include <map>
#include <string>
#include <vector>

#include "trainer/command_line/command_line.h"
#include "trainer/run/options.h"

// Words of a command line, "--lr=0.001": the options of the run that path names (a checkpoint, or a run's
// folder: its newest checkpoint) which app was not given, which no given one excludes, and whose scope is
// neither start nor plan. The model's shape and the tokenizer are words of their own, instead of --model and
// --init-from: the resumed run no longer needs the model that it began with. Empty if path holds no
// checkpoint that can be read; resuming it says what is wrong with it. app has been parsed.
std::vector<std::string> own_options(const CLI::App& app, const std::map<std::string, Scope>& scopes,
                                     const std::string& path);
