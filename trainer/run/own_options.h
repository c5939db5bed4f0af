// own_options.h: --resume PATH alone goes on as the run was: what the command line leaves out is as the
// checkpoint's
//   state.json has it. Not for .cu files (command_line.h).
#pragma once
#include <string>
#include <vector>

#include "trainer/command_line/command_line.h"

// Words of a command line, "--lr=0.001": the options of the run that path names (a checkpoint, or a run's
// folder: its newest checkpoint) which app was not given, which no given one excludes, and which are about
// training (not --out, nor those of --plan). The model's shape and the tokenizer are words of their own,
// instead of --model and --init-from: the run does not need the model any more that it began with. Empty if
// path holds no checkpoint that can be read; what is wrong with it is said when it is resumed. app has been
// parsed.
std::vector<std::string> own_options(const CLI::App& app, const std::string& path);
