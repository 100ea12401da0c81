// SPDX-License-Identifier: MIT
// Compares what a launch has computed with the product of what it was given, where it has the shape of one.
#pragma once
#include "host_api.h"

namespace cuda_on_cpu::product {

extern int compared, right;  // launches

void launch_begins(const Given* given, size_t count);
void launch_ends(const dim3& grid, const dim3& block);

}  // namespace cuda_on_cpu::product
