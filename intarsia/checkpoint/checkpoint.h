#pragma once
// Checkpoints: what a program has trained, on disk, for any number of ranks.

#include "intarsia/checkpoint/catalog.h"
#include "intarsia/checkpoint/export.h"
#include "intarsia/checkpoint/inspect.h"
#include "intarsia/checkpoint/load.h"
#include "intarsia/checkpoint/resume.h"
#include "intarsia/checkpoint/save.h"
#include "intarsia/checkpoint/verify.h"
