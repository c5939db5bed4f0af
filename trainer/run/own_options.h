// own_options.h: with --resume PATH, options that the command line leaves out take the values in the
// checkpoint's state.json, so that --resume PATH alone continues the run as it was. Not for .cu files
// (command_line.h).
#pragma once
#include <map>
#include <string>
#include <vector>

#include "trainer/command_line/command_line.h"
#include "trainer/run/options.h"

// Returns options of the run at `path` as words of a command line, such as "--lr=0.001". path is a
// checkpoint or a run's folder, whose newest checkpoint counts. Options that app was given, that a given
// option replaces, whose scope is start, or that only earlier versions had are left out. The model's shape
// and the tokenizer are separate words instead of --model and --init-from, so the resumed run no longer
// needs the model that it began with. Empty if path holds no readable checkpoint; resuming from it reports
// what is wrong. app must have been parsed.
std::vector<std::string> own_options(const CLI::App& app, const std::map<std::string, Scope>& scopes,
                                     const std::string& path);
