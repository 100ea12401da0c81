// SPDX-License-Identifier: MIT
// Hands over the arrays of each launch that reads two and writes a third, for hybrid.classroom.products: they may be a product.
#pragma once
#include "host_api.h"

namespace cuda_on_cpu::product {

void launch_begins(const Given* given, size_t count);
void launch_ends(const dim3& grid, const dim3& block);

}  // namespace cuda_on_cpu::product
