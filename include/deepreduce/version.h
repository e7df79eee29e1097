/* DeepReduce: versions. Included by the build to name the shared library, so one macro a line. */
#ifndef DEEPREDUCE_VERSION_H
#define DEEPREDUCE_VERSION_H

#define DR_VERSION_MAJOR 0
#define DR_VERSION_MINOR 3
#define DR_VERSION_PATCH 0
#define DR_VERSION_STRING "0.3.0"

/* Grows when a program built against an older header could no longer run. It is the soname. */
#define DR_ABI_VERSION 1

/* The interface of plug-ins (codec.h), and the version that a frame states (FORMAT.md). Frames of version 1 stay readable. */
#define DR_CODEC_ABI_VERSION 2
#define DR_FORMAT_VERSION 1

#endif
