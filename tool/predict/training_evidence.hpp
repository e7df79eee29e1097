// What trainings showed for plans of a kind.
#pragma once

#include <string>

#include "deepreduce/deepreduce.hpp"

namespace dr::predict {

// One sentence from bench/results/train.md or docs/PYTORCH.md; "" for a plan that sends everything exactly.
std::string training_evidence(const plan& method);

// Whether at least half of the models that were trained with such plans became as good as by dense ones.
bool trained_as_dense(const plan& method);

}  // namespace dr::predict
