// SPDX-License-Identifier: MIT
// The runtime of a whole program, compiled at once, which takes half the time. Each part is initialized after those that it needs.
#include "findings.cpp"
#include "device_memory.cpp"
#include "host_memory.cpp"
#include "observers.cpp"
#include "memory_check.cpp"
#include "runtime.cpp"
#include "host_api.cpp"
#include "host_api_events.cpp"
#include "launches.cpp"
