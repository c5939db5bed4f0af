// add_options.h: defines every option of train_gpt2, each in one call. Not for .cu files (command_line.h).
#pragma once
#include "trainer/command_line/command_line.h"
#include "trainer/run/options.h"

// Adds all options; parsing with app stores their values in `o`. o.scopes gets the scope of each.
void add_options(CLI::App& app, Options& o);

// The optimizer's name as --optimizer spells it.
std::string name_of(Optimizer optimizer);
