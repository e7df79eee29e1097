/* A transport over Unix stream sockets: all that deepreduce/exchange.h requires of one, in 300 lines of C. Ranks are
 * processes of one host; each pair has a socket. unix_mean.c and elastic_ranks.c use it.
 *
 * A message is a head, its tag and size, and the bytes. Of each peer messages arrive in the order in which they were sent,
 * of all tags together, so one may come before its receive is posted: it waits in a list of early ones. */
#ifndef UNIX_TRANSPORT_H
#define UNIX_TRANSPORT_H

#include <deepreduce/exchange.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { UNIX_RANKS_MAX = 64 };

typedef struct unix_head {
  uint64_t tag, size;
} unix_head;

typedef struct unix_early {
  unix_head head;
  char *bytes;
  struct unix_early *next;
} unix_early;

typedef enum { UNIX_FREE, UNIX_SEND, UNIX_RECV, UNIX_OVER } unix_state;
typedef struct unix_request {
  unix_state state;
  uint32_t peer;
  unix_head head;   /* send: of the message; receive: its tag, and the received size */
  char *bytes;      /* of the exchange, until the request ends */
  size_t capacity;  /* receive */
  uint64_t order;   /* of posting: the oldest receive of a tag receives the first message */
  int owned;        /* a send that was cancelled halfway: `bytes` is ours, and its request has ended */
  dr_status status; /* OVER */
} unix_request;

typedef struct unix_peer {
  int fd;
  int lost;
  uint64_t sent;                     /* of the message that is being sent, with its head */
  unix_head head;                    /* of the message that is being received */
  uint64_t received;                 /* of it, with its head */
  unix_early *early, *last, *coming; /* complete ones in order; the one that has no receive yet */
  uint64_t receives;                 /* number of its request, or UINT64_MAX */
} unix_peer;

typedef struct unix_transport {
  uint32_t ranks, rank;
  unix_peer peers[UNIX_RANKS_MAX];
  unix_request *requests; /* [room] */
  uint64_t room, posted;
} unix_transport;

/* The oldest request of a peer in a state; with a tag unless it is UINT64_MAX. */
static inline uint64_t unix_oldest(const unix_transport *t, uint32_t peer, unix_state state, uint64_t tag) {
  uint64_t found = UINT64_MAX;
  for (uint64_t i = 0; i < t->room; ++i) {
    const unix_request *r = &t->requests[i];
    if (r->state != state || r->peer != peer || (tag != UINT64_MAX && r->head.tag != tag)) continue;
    if (found == UINT64_MAX || r->order < t->requests[found].order) found = i;
  }
  return found;
}

static inline void unix_end(unix_request *r, dr_status status) {
  if (r->owned) {
    free(r->bytes);
    r->owned = 0;
    r->state = UNIX_FREE;
  } else {
    r->state = UNIX_OVER;
    r->status = status;
  }
}

/* The peer is gone: open requests will never be done. Received messages stay. */
static inline void unix_lose(unix_transport *t, uint32_t peer) {
  t->peers[peer].lost = 1;
  for (uint64_t i = 0; i < t->room; ++i) {
    unix_request *r = &t->requests[i];
    if (r->peer == peer && (r->state == UNIX_SEND || r->state == UNIX_RECV)) unix_end(r, DR_E_PEER);
  }
}

/* Sends as much as the socket accepts. */
static inline void unix_push(unix_transport *t, uint32_t peer) {
  unix_peer *p = &t->peers[peer];
  while (!p->lost) {
    const uint64_t at = unix_oldest(t, peer, UNIX_SEND, UINT64_MAX);
    if (at == UINT64_MAX) return;
    unix_request *r = &t->requests[at];
    const char *const from =
        p->sent < sizeof r->head ? (const char *)&r->head + p->sent : r->bytes + (p->sent - sizeof r->head);
    const uint64_t part = p->sent < sizeof r->head ? sizeof r->head - p->sent : r->head.size + sizeof r->head - p->sent;
    const ssize_t n = send(p->fd, from, part, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
    if (n < 0) {
      unix_lose(t, peer);
      return;
    }
    p->sent += (uint64_t)n;
    if (p->sent == sizeof r->head + r->head.size) {
      p->sent = 0;
      unix_end(r, DR_OK);
    }
  }
}

/* A head is complete: finds the memory for its bytes. */
static inline dr_status unix_place(unix_transport *t, uint32_t peer) {
  unix_peer *p = &t->peers[peer];
  p->receives = unix_oldest(t, peer, UNIX_RECV, p->head.tag);
  if (p->receives != UINT64_MAX && p->head.size <= t->requests[p->receives].capacity) return DR_OK;
  p->receives = UINT64_MAX;
  /* (Also one that is longer than its receive, which is then CAPACITY. Sizes are not limited: peers are trusted here.) */
  p->coming = (unix_early *)calloc(1, sizeof *p->coming);
  if (p->coming) p->coming->bytes = (char *)malloc(p->head.size + 1);
  if (!p->coming || !p->coming->bytes) return DR_E_MEMORY;
  p->coming->head = p->head;
  return DR_OK;
}

/* Delivers an early message to its receive. */
static inline void unix_hand_over(unix_request *r, unix_early *e) {
  const int fits = e->head.size <= r->capacity;
  if (fits) memcpy(r->bytes, e->bytes, e->head.size);
  r->head.size = e->head.size;
  unix_end(r, fits ? DR_OK : DR_E_CAPACITY);
  free(e->bytes);
  free(e);
}

/* A message is complete. */
static inline void unix_deliver(unix_transport *t, uint32_t peer) {
  unix_peer *p = &t->peers[peer];
  if (!p->coming) {
    t->requests[p->receives].head.size = p->head.size;
    unix_end(&t->requests[p->receives], DR_OK);
  } else {
    /* Its receive may have been posted during its arrival. */
    const uint64_t at = unix_oldest(t, peer, UNIX_RECV, p->head.tag);
    if (at != UINT64_MAX) {
      unix_hand_over(&t->requests[at], p->coming);
    } else {
      if (p->last) {
        p->last->next = p->coming;
      } else {
        p->early = p->coming;
      }
      p->last = p->coming;
    }
  }
  p->coming = NULL;
  p->receives = UINT64_MAX;
  p->received = 0;
}

/* Receives as much as is available. */
static inline void unix_pull(unix_transport *t, uint32_t peer) {
  unix_peer *p = &t->peers[peer];
  while (!p->lost) {
    char *to;
    uint64_t part;
    ssize_t n = 0;
    if (p->received < sizeof p->head) {
      to = (char *)&p->head + p->received;
      part = sizeof p->head - p->received;
    } else {
      to = (p->coming ? p->coming->bytes : t->requests[p->receives].bytes) + (p->received - sizeof p->head);
      part = p->head.size + sizeof p->head - p->received;
    }
    if (part) {
      n = recv(p->fd, to, part, MSG_DONTWAIT);
      if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
      if (n <= 0) { /* the end of the stream: the peer's process is gone */
        unix_lose(t, peer);
        return;
      }
    }
    p->received += (uint64_t)n;
    if (p->received == sizeof p->head && unix_place(t, peer) != DR_OK) {
      unix_lose(t, peer);
      return;
    }
    if (p->received == sizeof p->head + p->head.size) unix_deliver(t, peer);
  }
}

/* ---- The functions of dr_transport ----------------------------------------------------------------------- */

static inline dr_status unix_post(unix_transport *t, unix_state state, uint32_t peer, uint32_t tag, char *bytes,
                                  size_t size, uint64_t *request) {
  uint64_t at = 0;
  while (at < t->room && t->requests[at].state != UNIX_FREE) ++at;
  if (at == t->room) {
    const uint64_t room = t->room ? 2 * t->room : 64;
    unix_request *more = (unix_request *)realloc(t->requests, room * sizeof *more);
    if (!more) return DR_E_MEMORY;
    memset(more + t->room, 0, (room - t->room) * sizeof *more);
    t->requests = more;
    t->room = room;
  }
  unix_request *r = &t->requests[at];
  memset(r, 0, sizeof *r);
  r->state = state;
  r->peer = peer;
  r->head.tag = tag;
  r->head.size = size;
  r->capacity = size;
  r->bytes = bytes;
  r->order = t->posted++;
  *request = at;
  return DR_OK;
}

static inline dr_status unix_send(void *user, uint32_t peer, uint32_t tag, const void *bytes, size_t size,
                                  uint64_t *request) {
  unix_transport *t = (unix_transport *)user;
  if (t->peers[peer].lost) return DR_E_PEER;
  const dr_status status = unix_post(t, UNIX_SEND, peer, tag, (char *)bytes, size, request);
  if (status == DR_OK) unix_push(t, peer);
  return status;
}

static inline dr_status unix_recv(void *user, uint32_t peer, uint32_t tag, void *bytes, size_t capacity,
                                  uint64_t *request) {
  unix_transport *t = (unix_transport *)user;
  unix_peer *p = &t->peers[peer];
  const dr_status status = unix_post(t, UNIX_RECV, peer, tag, (char *)bytes, capacity, request);
  if (status != DR_OK) return status;
  unix_request *r = &t->requests[*request];
  unix_early *before = NULL;
  for (unix_early *e = p->early; e; before = e, e = e->next) {
    if (e->head.tag != tag) continue;
    *(before ? &before->next : &p->early) = e->next;
    if (p->last == e) p->last = before;
    unix_hand_over(r, e);
    return DR_OK;
  }
  if (p->lost) unix_end(r, DR_E_PEER);
  return DR_OK;
}

static inline dr_status unix_test(void *user, uint64_t request, size_t *size) {
  unix_transport *t = (unix_transport *)user;
  unix_request *r = &t->requests[request];
  if (r->state == UNIX_SEND) unix_push(t, r->peer);
  if (r->state == UNIX_RECV) unix_pull(t, r->peer);
  if (r->state != UNIX_OVER) return DR_PENDING;
  *size = r->head.size; /* (not read after a send) */
  r->state = UNIX_FREE;
  return r->status;
}

/* Afterwards the exchange may reuse the memory at once. */
static inline dr_status unix_cancel(void *user, uint64_t request) {
  unix_transport *t = (unix_transport *)user;
  unix_request *r = &t->requests[request];
  unix_peer *p = &t->peers[r->peer];
  if (r->state == UNIX_SEND && p->sent && unix_oldest(t, r->peer, UNIX_SEND, UINT64_MAX) == request) {
    /* Half of it has been sent: the stream continues with a copy of the rest. */
    char *copy = (char *)malloc(r->head.size + 1);
    if (!copy) return DR_PENDING;
    memcpy(copy, r->bytes, r->head.size);
    r->bytes = copy;
    r->owned = 1;
    return DR_OK;
  }
  if (r->state == UNIX_RECV && p->receives == request && p->received >= sizeof p->head && !p->coming) {
    /* Half of it has been received: the rest is received elsewhere, as an early message. */
    unix_early *e = (unix_early *)calloc(1, sizeof *e);
    if (e) e->bytes = (char *)malloc(p->head.size + 1);
    if (!e || !e->bytes) {
      free(e);
      return DR_PENDING;
    }
    e->head = p->head;
    memcpy(e->bytes, r->bytes, p->received - sizeof p->head);
    p->coming = e;
  }
  if (p->receives == request) p->receives = UINT64_MAX;
  r->state = UNIX_FREE;
  return DR_OK;
}

/* ---- Making and waiting ---------------------------------------------------------------------------------- */

/* fds [ranks]: the socket to every rank; its own is ignored. The transport owns them from now on. */
static inline unix_transport *unix_transport_create(uint32_t ranks, uint32_t rank, const int *fds) {
  unix_transport *t = (unix_transport *)calloc(1, sizeof *t);
  if (!t || ranks > UNIX_RANKS_MAX) return NULL;
  t->ranks = ranks;
  t->rank = rank;
  for (uint32_t i = 0; i < ranks; ++i) {
    t->peers[i].fd = i == rank ? -1 : fds[i];
    t->peers[i].receives = UINT64_MAX;
  }
  return t;
}

/* To be called after the exchange that uses it is destroyed. */
static inline void unix_transport_destroy(unix_transport *t) {
  for (uint32_t i = 0; t && i < t->ranks; ++i) {
    unix_peer *p = &t->peers[i];
    while (p->early) {
      unix_early *next = p->early->next;
      free(p->early->bytes);
      free(p->early);
      p->early = next;
    }
    if (p->coming) free(p->coming->bytes);
    free(p->coming);
    if (p->fd >= 0) close(p->fd);
  }
  for (uint64_t i = 0; t && i < t->room; ++i)
    if (t->requests[i].owned) free(t->requests[i].bytes);
  if (t) free(t->requests);
  free(t);
}

static inline dr_transport unix_transport_of(unix_transport *t) {
  dr_transport made;
  memset(&made, 0, sizeof made);
  made.struct_size = sizeof made;
  made.user = t;
  made.ranks = t->ranks;
  made.rank = t->rank;
  made.send = unix_send;
  made.recv = unix_recv;
  made.test = unix_test;
  made.cancel = unix_cancel;
  return made;
}

/* Waits until a socket can be read or, if messages wait for it, written; 10 ms at most. */
static inline void unix_wait(unix_transport *t) {
  struct pollfd list[UNIX_RANKS_MAX];
  for (uint32_t i = 0; i < t->ranks; ++i) {
    unix_peer *p = &t->peers[i];
    list[i].fd = p->lost ? -1 : p->fd;
    list[i].events = POLLIN;
    if (unix_oldest(t, i, UNIX_SEND, UINT64_MAX) != UINT64_MAX) list[i].events |= POLLOUT;
    list[i].revents = 0;
  }
  (void)poll(list, t->ranks, 10);
  for (uint32_t i = 0; i < t->ranks; ++i) {
    if (list[i].revents & POLLOUT) unix_push(t, i);
    if (list[i].revents & ~POLLOUT) unix_pull(t, i);
  }
}

/* Runs a started exchange to its end. */
static inline dr_status unix_finish(unix_transport *t, dr_exchange *exchange) {
  dr_status status;
  while ((status = dr_exchange_advance(exchange)) == DR_PENDING) unix_wait(t);
  return status;
}

#endif
