#include "byte_peers.hpp"

#include <zlib.h>
#if defined(DR_PEER_ZSTD)
#include <zstd.h>
#endif
#if defined(DR_PEER_LIBDEFLATE)
#include <libdeflate.h>
#endif
#if defined(DR_PEER_LZ4)
#include <lz4.h>
#endif
#if defined(DR_PEER_BLOSC)
#include <blosc.h>
#endif

#include "peer.hpp"

namespace dr::bench {
namespace {

[[maybe_unused]] byte_peer absent(const char* name, const char* library) { return {name, library, not_here(library)}; }

#if defined(DR_PEER_ZSTD)
struct zstd_state {
  ZSTD_CCtx* compress = ZSTD_createCCtx();
  ZSTD_DCtx* expand = ZSTD_createDCtx();
  ~zstd_state() { ZSTD_freeCCtx(compress), ZSTD_freeDCtx(expand); }
};
byte_peer zstd_peer() {
  return {"zstd -1",
          std::string("Zstandard ") + ZSTD_versionString(),
          "",
          ZSTD_compressBound,
          [](const void* src, size_t size, void* dst, size_t capacity, void* state) -> size_t {
            const size_t made =
                ZSTD_compressCCtx(static_cast<zstd_state*>(state)->compress, dst, capacity, src, size, 1);
            return ZSTD_isError(made) ? 0 : made;
          },
          [](const void* src, size_t size, void* dst, size_t expected, void* state) {
            return ZSTD_decompressDCtx(static_cast<zstd_state*>(state)->expand, dst, expected, src, size) == expected;
          },
          std::make_shared<zstd_state>()};
}
#else
byte_peer zstd_peer() { return absent("zstd -1", "libzstd"); }
#endif

#if defined(DR_PEER_LIBDEFLATE)
struct deflate_state {
  libdeflate_compressor* compress = libdeflate_alloc_compressor(1);
  libdeflate_decompressor* expand = libdeflate_alloc_decompressor();
  ~deflate_state() { libdeflate_free_compressor(compress), libdeflate_free_decompressor(expand); }
};
byte_peer libdeflate_peer() {
  return {"libdeflate -1",
          std::string("libdeflate ") + LIBDEFLATE_VERSION_STRING,
          "",
          [](size_t size) { return libdeflate_deflate_compress_bound(nullptr, size); },
          [](const void* src, size_t size, void* dst, size_t capacity, void* state) {
            return libdeflate_deflate_compress(static_cast<deflate_state*>(state)->compress, src, size, dst, capacity);
          },
          [](const void* src, size_t size, void* dst, size_t expected, void* state) {
            return libdeflate_deflate_decompress(static_cast<deflate_state*>(state)->expand, src, size, dst, expected,
                                                 nullptr) == LIBDEFLATE_SUCCESS;
          },
          std::make_shared<deflate_state>()};
}
#else
byte_peer libdeflate_peer() { return absent("libdeflate -1", "libdeflate"); }
#endif

byte_peer zlib_peer() {
  return {"zlib -6",
          std::string("zlib ") + zlibVersion(),
          "",
          [](size_t size) -> size_t { return compressBound(size); },
          [](const void* src, size_t size, void* dst, size_t capacity, void*) -> size_t {
            uLongf made = capacity;
            return compress2(static_cast<Bytef*>(dst), &made, static_cast<const Bytef*>(src), size, 6) == Z_OK ? made
                                                                                                               : 0;
          },
          [](const void* src, size_t size, void* dst, size_t expected, void*) {
            uLongf made = expected;
            return uncompress(static_cast<Bytef*>(dst), &made, static_cast<const Bytef*>(src), size) == Z_OK &&
                   made == expected;
          }};
}

#if defined(DR_PEER_LZ4)
byte_peer lz4_peer() {
  return {"lz4",
          std::string("LZ4 ") + LZ4_versionString(),
          "",
          [](size_t size) -> size_t { return static_cast<size_t>(LZ4_compressBound(static_cast<int>(size))); },
          [](const void* src, size_t size, void* dst, size_t capacity, void*) -> size_t {
            return static_cast<size_t>(LZ4_compress_default(static_cast<const char*>(src), static_cast<char*>(dst),
                                                            static_cast<int>(size), static_cast<int>(capacity)));
          },
          [](const void* src, size_t size, void* dst, size_t expected, void*) {
            return LZ4_decompress_safe(static_cast<const char*>(src), static_cast<char*>(dst), static_cast<int>(size),
                                       static_cast<int>(expected)) == static_cast<int>(expected);
          }};
}
#else
byte_peer lz4_peer() { return absent("lz4", "liblz4"); }
#endif

#if defined(DR_PEER_BLOSC)
template <int shuffle, int level>
byte_peer blosc_peer(const char* name, const char* compressor) {
  return {name,
          std::string("Blosc ") + BLOSC_VERSION_STRING,
          "",
          [](size_t size) -> size_t { return size + BLOSC_MAX_OVERHEAD; },
          [](const void* src, size_t size, void* dst, size_t capacity, void* which) -> size_t {
            const int made =
                blosc_compress_ctx(level, shuffle, 4, size, src, dst, capacity, static_cast<const char*>(which), 0, 1);
            return made > 0 ? static_cast<size_t>(made) : 0;
          },
          [](const void* src, size_t, void* dst, size_t expected, void*) {
            return blosc_decompress_ctx(src, dst, expected, 1) == static_cast<int>(expected);
          },
          std::shared_ptr<void>(const_cast<char*>(compressor), [](void*) {})};
}
#endif

}  // namespace

std::vector<byte_peer> byte_peers() { return {zstd_peer(), libdeflate_peer(), zlib_peer(), lz4_peer()}; }

std::vector<byte_peer> blosc_peers() {
#if defined(DR_PEER_BLOSC)
  return {blosc_peer<BLOSC_SHUFFLE, 5>("blosc lz4, shuffle", "lz4"),
          blosc_peer<BLOSC_BITSHUFFLE, 5>("blosc lz4, bitshuffle", "lz4"),
          blosc_peer<BLOSC_BITSHUFFLE, 1>("blosc zstd, bitshuffle", "zstd")};
#else
  return {absent("blosc", "blosc")};
#endif
}

}  // namespace dr::bench
