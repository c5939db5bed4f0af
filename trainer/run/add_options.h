// add_options.h: every option of train_gpt2 in one line. Not for .cu files (command_line.h).
#pragma once
#include "trainer/command_line/command_line.h"
#include "trainer/run/options.h"

// Adds all options, whose values go to `o` when app parses. o.scopes says what each belongs to.
void add_options(CLI::App& app, Options& o);

// The name that --optimizer has for it.
std::string name_of(Optimizer optimizer);
