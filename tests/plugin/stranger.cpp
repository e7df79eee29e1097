// Knows the built-in codecs only; says what it makes of a frame:  stranger FRAME
#include <deepreduce/deepreduce.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  std::ifstream file(argv[1], std::ios::binary);
  const std::vector<char> frame((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  dr_error error{sizeof(dr_error)};
  error.struct_size = sizeof error;
  dr_frame_info info{};
  info.struct_size = sizeof info;
  const dr_status inspected = dr_inspect(frame.data(), frame.size(), &info, nullptr, 0, 0, &error);
  std::printf("inspect %s: %s\n", dr_status_name(inspected), error.message);
  dr_context* context = nullptr;
  if (dr_context_create(nullptr, &context, nullptr) != DR_OK) return 1;
  float values[100];
  dr_tensor_out out{};
  out.struct_size = sizeof out;
  out.dtype = DR_F32;
  out.universe = 100;
  out.values = values;
  const dr_status decoded = dr_decode(context, nullptr, frame.data(), frame.size(), nullptr, &out, sizeof out, 1);
  std::printf("decode %s: %s\n", dr_status_name(decoded), dr_last_error(context)->message);
  dr_context_destroy(context);
  return 0;
}
