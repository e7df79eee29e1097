#include "world.hpp"
