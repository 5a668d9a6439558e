/* The part of libfabric's binary interface that the relay uses, from its manual pages (API 1.9, unchanged since).
 *
 * It is declared here so that the core compiles without libfabric's headers; the library itself is opened by name when
 * a job asks for it. Most of its functions are reached through tables in its objects: members before a used function
 * are declared to give it its place. Structures may grow at their ends, so the library allocates those that we read.
 * Members have no owner comments: the layout is libfabric's, and struct provider says which thread uses the objects.
 */
#ifndef HERRINGBONE_LIBFABRIC_H
#define HERRINGBONE_LIBFABRIC_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define LF_VERSION ((1u << 16) | 9u)
#define LF_TAGGED (1ull << 3)
#define LF_RECV (1ull << 10)
#define LF_SEND (1ull << 11)
#define LF_SOURCE (1ull << 57)
#define LF_DIRECTED_RECV (1ull << 59)
#define LF_CONTEXT (1ull << 59)
#define LF_CONTEXT2 (1ull << 52)
#define LF_ORDER_SAS (1ull << 8)
#define LF_ADDRESS_NONE UINT64_MAX

enum { LF_SOCKADDR = 1, LF_SOCKADDR_IN, LF_SOCKADDR_IN6 };
enum { LF_AV_TABLE = 2 };
enum { LF_MR_LOCAL = 1 << 2, LF_MR_VIRT_ADDR = 1 << 4, LF_MR_ALLOCATED = 1 << 5, LF_MR_PROV_KEY = 1 << 6 };
enum { LF_THREAD_DOMAIN = 3 };
enum { LF_RM_ENABLED = 2 };
enum { LF_EP_RDM = 3 };
enum { LF_WAIT_NONE = 0, LF_WAIT_FD = 3 };
enum { LF_CQ_TAGGED = 4 };
enum { LF_GETWAIT = 5, LF_ENABLE = 6 };
enum { LF_EAVAIL = 259 };

typedef void (*lf_unused)(void);

struct lf_domain;
struct lf_av;
struct lf_cq;
struct lf_ep;
struct lf_mr;

struct lf_fid {
    size_t class;
    void *context;
    struct lf_fid_ops *ops;
};
struct lf_fid_ops {
    size_t size;
    int (*close)(struct lf_fid *);
    int (*bind)(struct lf_fid *, struct lf_fid *other, uint64_t flags);
    int (*control)(struct lf_fid *, int command, void *argument);
};

struct lf_order { /* the common start of struct fi_tx_attr and struct fi_rx_attr */
    uint64_t caps, mode, op_flags, msg_order, comp_order;
};
struct lf_ep_attr {
    int type;
    uint32_t protocol, protocol_version;
    size_t max_msg_size;
};
struct lf_domain_attr {
    void *domain;
    char *name;
    int threading, control_progress, data_progress, resource_mgmt, av_type, mr_mode;
};
struct lf_fabric_attr {
    void *fabric;
    char *name, *provider;
};
struct lf_info {
    struct lf_info *next;
    uint64_t caps, mode;
    uint32_t addr_format;
    size_t src_addrlen, dest_addrlen;
    void *src_addr, *dest_addr, *handle;
    struct lf_order *tx, *rx;
    struct lf_ep_attr *ep;
    struct lf_domain_attr *domain;
    struct lf_fabric_attr *fabric;
};

struct lf_fabric {
    struct lf_fid fid;
    struct lf_fabric_ops *ops;
};
struct lf_fabric_ops {
    size_t size;
    int (*domain)(struct lf_fabric *, struct lf_info *, struct lf_domain **, void *context);
    lf_unused passive_ep, eq_open, wait_open;
    int (*trywait)(struct lf_fabric *, struct lf_fid **fids, int count);
};

struct lf_av_attr {
    int type, rx_ctx_bits;
    size_t count, ep_per_node;
    const char *name;
    void *map_addr;
    uint64_t flags;
};
struct lf_cq_attr {
    size_t size;
    uint64_t flags;
    int format, wait_obj, signaling_vector, wait_cond;
    void *wait_set;
};
struct lf_domain {
    struct lf_fid fid;
    struct lf_domain_ops *ops;
    struct lf_mr_ops *mr;
};
struct lf_domain_ops {
    size_t size;
    int (*av_open)(struct lf_domain *, struct lf_av_attr *, struct lf_av **, void *context);
    int (*cq_open)(struct lf_domain *, struct lf_cq_attr *, struct lf_cq **, void *context);
    int (*endpoint)(struct lf_domain *, struct lf_info *, struct lf_ep **, void *context);
};
struct lf_mr_ops {
    size_t size;
    int (*reg)(struct lf_fid *, const void *start, size_t length, uint64_t access, uint64_t offset, uint64_t key,
               uint64_t flags, struct lf_mr **, void *context);
};
struct lf_mr {
    struct lf_fid fid;
    void *descriptor;
};

struct lf_av {
    struct lf_fid fid;
    struct lf_av_ops *ops;
};
struct lf_av_ops {
    size_t size;
    int (*insert)(struct lf_av *, const void *address, size_t count, uint64_t *number, uint64_t flags, void *context);
};

struct lf_cq {
    struct lf_fid fid;
    struct lf_cq_ops *ops;
};
struct lf_cq_entry {
    void *context;
    uint64_t flags;
    size_t length;
    void *buffer;
    uint64_t data, tag;
};
struct lf_cq_error {
    struct lf_cq_entry of;
    size_t overflow;
    int error, provider_error;
    void *data;
    size_t data_size;
    uint64_t later[4]; /* room for members that newer releases write */
};
struct lf_cq_ops {
    size_t size;
    ssize_t (*read)(struct lf_cq *, void *entries, size_t count);
    lf_unused readfrom;
    ssize_t (*readerr)(struct lf_cq *, struct lf_cq_error *, uint64_t flags);
};

struct lf_ep {
    struct lf_fid fid;
    void *ops;
    struct lf_cm_ops *cm;
    void *msg, *rma;
    struct lf_tagged_ops *tagged;
};
struct lf_cm_ops {
    size_t size;
    lf_unused setname;
    int (*getname)(struct lf_fid *, void *address, size_t *length);
};
struct lf_tagged_ops {
    size_t size;
    ssize_t (*recv)(struct lf_ep *, void *start, size_t length, void *descriptor, uint64_t from, uint64_t tag,
                    uint64_t ignore, void *context);
    lf_unused recvv, recvmsg;
    ssize_t (*send)(struct lf_ep *, const void *start, size_t length, void *descriptor, uint64_t to, uint64_t tag,
                    void *context);
};

#endif
