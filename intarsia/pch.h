#pragma once
// Precompiled: the headers of LibTorch that nearly every file of the library needs. Files include what they use.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
