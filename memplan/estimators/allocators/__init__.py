"""Models of the allocators: CUDA's caching allocator and the C library's heap. Pure: no torch."""
