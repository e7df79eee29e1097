#include "timeline.hpp"

#include <algorithm>

namespace dr::predict {

void two_lanes::compute(double ns, const char* kind, const std::string& name) {
  if (ns <= 0) return;
  const double begin = now_;
  // The part beside transfers is slower.
  const double beside = std::max(0.0, link_free_ - now_), slow = ns * slowdown_;
  now_ += slow <= beside ? slow : beside + (ns - beside / slowdown_);
  if (traced_) timeline_.push_back({"compute", kind, name, begin, now_});
}

double two_lanes::send(double ns, const char* kind, const std::string& name, bool level) {
  const double begin = std::max(now_ + (level ? 0 : skew_), link_free_);
  link_free_ = begin + ns;
  link_busy_ += ns;
  if (traced_ && ns > 0) timeline_.push_back({"link", kind, name, begin, link_free_});
  return link_free_;
}

void two_lanes::wait(double until) { now_ = std::max(now_, until); }

outcome two_lanes::result(double plain_ns, double encode_ns, double merge_ns, double bytes) {
  const double computing = plain_ns + encode_ns + merge_ns;
  outcome o;
  o.step_ns = now_;
  o.encode_ns = encode_ns, o.merge_ns = merge_ns;
  o.link_ns = link_busy_;
  o.exposed_ns = std::max(0.0, now_ - computing);
  o.no_overlap_ns = computing + link_busy_ + (link_busy_ > 0 ? skew_ : 0);
  o.perfect_ns = std::max(computing, link_busy_);
  o.bytes = bytes;
  o.timeline = std::move(timeline_);
  return o;
}

}  // namespace dr::predict
