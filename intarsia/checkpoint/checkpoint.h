#pragma once
// Checkpoints of modules, optimizers and tensors, loadable on any number of ranks: all headers that programs need.

#include "intarsia/checkpoint/catalog.h"
#include "intarsia/checkpoint/export.h"
#include "intarsia/checkpoint/inspect.h"
#include "intarsia/checkpoint/load.h"
#include "intarsia/checkpoint/resume.h"
#include "intarsia/checkpoint/save.h"
#include "intarsia/checkpoint/verify.h"
