// SPDX-License-Identifier: MIT
// The runtime of a whole program as one source, which compiles in half the time, and initializes each part after those that it
// needs.
#include "findings.cpp"
#include "device_memory.cpp"
#include "host_memory.cpp"
#include "observers.cpp"
#include "memory_check.cpp"
#include "runtime.cpp"
#include "host_api.cpp"
#include "host_api_events.cpp"
#include "launches.cpp"
