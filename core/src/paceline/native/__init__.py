"""Kernels in C++, built on first use on the machine that runs them, and kept in the cache folder."""
