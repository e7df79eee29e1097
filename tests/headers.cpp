// Read with pch/headers.hpp, which is precompiled for it.
