#include "provider.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The functions that the library exports; all others are in tables of its objects. On the stack of provider_open. */
struct entry_points {
    int (*getinfo)(uint32_t version, const char *node, const char *service, uint64_t flags, const struct lf_info *hints,
                   struct lf_info **result);
    void (*freeinfo)(struct lf_info *);
    struct lf_info *(*dupinfo)(const struct lf_info *);
    int (*fabric)(struct lf_fabric_attr *, struct lf_fabric **, void *context);
    const char *(*strerror)(int);
};

/* Load the library. It is never unloaded: a provider's threads and fork handlers outlive its objects. */
static int load(struct entry_points *points, const char *library, char *why, size_t size) {
    void *opened = NULL;
    char names[4096], *rest = names;
    snprintf(names, sizeof names, "%s", library);
    for (char *name; !opened && (name = strsep(&rest, ":"));) {
        opened = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        /* Report the error for the bare name, which the system's own loader searches: the user can fix that one. */
        if (!opened && !strchr(name, '/')) snprintf(why, size, "libfabric cannot be loaded: %s", dlerror());
    }
    if (!opened) return -1;
    *(void **)&points->getinfo = dlsym(opened, "fi_getinfo");
    *(void **)&points->freeinfo = dlsym(opened, "fi_freeinfo");
    *(void **)&points->dupinfo = dlsym(opened, "fi_dupinfo");
    *(void **)&points->fabric = dlsym(opened, "fi_fabric");
    *(void **)&points->strerror = dlsym(opened, "fi_strerror");
    if (points->getinfo && points->freeinfo && points->dupinfo && points->fabric && points->strerror) return 0;
    snprintf(why, size, "%s is no libfabric: it lacks functions that each release has", library);
    return -1;
}

static struct lf_info *hints_for(const struct entry_points *points, const char *name, const char *domain) {
    struct lf_info *hints = points->dupinfo(NULL);
    if (!hints) return NULL;
    hints->caps = LF_TAGGED | LF_SEND | LF_RECV | LF_DIRECTED_RECV;
    hints->mode = LF_CONTEXT | LF_CONTEXT2;
    hints->ep->type = LF_EP_RDM;
    hints->tx->msg_order = hints->rx->msg_order = LF_ORDER_SAS; /* sends arrive in order: a stream needs that */
    hints->domain->threading = LF_THREAD_DOMAIN; /* one thread at a time calls the library */
    hints->domain->resource_mgmt = LF_RM_ENABLED; /* a full queue is reported by -EAGAIN, and no message is lost */
    hints->domain->mr_mode = LF_MR_LOCAL | LF_MR_VIRT_ADDR | LF_MR_ALLOCATED | LF_MR_PROV_KEY;
    /* Copies: freeinfo frees them together with the hints. */
    if (name) hints->fabric->provider = strdup(name);
    if (domain) hints->domain->name = strdup(domain);
    return hints;
}

/* Write the providers and domains of this host: "tcp/eth0, tcp/lo". */
static void list(const struct entry_points *points, char *text, size_t size) {
    struct lf_info *hints = hints_for(points, NULL, NULL), *available = NULL;
    *text = 0;
    if (hints && points->getinfo(LF_VERSION, NULL, NULL, 0, hints, &available) == 0) {
        for (struct lf_info *info = available; info; info = info->next) {
            char name[256];
            size_t used = strlen(text);
            snprintf(name, sizeof name, "%s%.*s/%s", used ? ", " : "", (int)strcspn(info->fabric->provider, ";"),
                     info->fabric->provider, info->domain->name);
            if (used + strlen(name) < size && !strstr(text, name + (used ? 2 : 0))) strcat(text, name);
        }
        points->freeinfo(available);
    }
    if (!*text) snprintf(text, size, "nothing");
    if (hints) points->freeinfo(hints);
}

/* Ask for the provider. If it uses the network's addresses, ask again for the address that leads to the others. */
static int find(const struct entry_points *points, const char *name, const char *domain, const char *address,
                struct lf_info **result) {
    struct lf_info *hints = hints_for(points, name, domain), *first = NULL;
    if (!hints) return -ENOMEM;
    int error = points->getinfo(LF_VERSION, NULL, NULL, 0, hints, &first);
    *result = NULL;
    if (error == 0 && first->addr_format >= LF_SOCKADDR && first->addr_format <= LF_SOCKADDR_IN6) {
        points->freeinfo(first);
        hints->addr_format = strchr(address, ':') ? LF_SOCKADDR_IN6 : LF_SOCKADDR_IN;
        int bind = *address != 0;
        error = points->getinfo(LF_VERSION, bind ? address : NULL, NULL, bind ? LF_SOURCE : 0, hints, &first);
    }
    points->freeinfo(hints);
    if (error == 0) *result = first;
    return error;
}

static int open_completions(struct provider *provider) {
    struct lf_cq_attr attributes = {.format = LF_CQ_TAGGED, .wait_obj = LF_WAIT_FD};
    struct lf_domain_ops *ops = provider->domain->ops;
    provider->wait = -1;
    if (ops->cq_open(provider->domain, &attributes, &provider->completions, NULL) == 0) {
        struct lf_fid *opened = &provider->completions->fid;
        return opened->ops->control(opened, LF_GETWAIT, &provider->wait);
    }
    /* Not every provider has a descriptor to wait for. */
    attributes.wait_obj = LF_WAIT_NONE;
    return ops->cq_open(provider->domain, &attributes, &provider->completions, NULL);
}

/* Open the objects one after the other. On failure provider_close closes those that were opened. */
static int open_objects(struct provider *provider, const struct entry_points *points, struct lf_info *info) {
    struct lf_av_attr table = {.type = LF_AV_TABLE};
    int result = points->fabric(info->fabric, &provider->fabric, NULL);
    if (result == 0) result = provider->fabric->ops->domain(provider->fabric, info, &provider->domain, NULL);
    if (result == 0) result = provider->domain->ops->av_open(provider->domain, &table, &provider->addresses, NULL);
    if (result == 0) result = open_completions(provider);
    if (result == 0) result = provider->domain->ops->endpoint(provider->domain, info, &provider->endpoint, NULL);
    if (result) return result;
    struct lf_fid *endpoint = &provider->endpoint->fid;
    result = endpoint->ops->bind(endpoint, &provider->addresses->fid, 0);
    if (result == 0) result = endpoint->ops->bind(endpoint, &provider->completions->fid, LF_SEND | LF_RECV);
    if (result == 0) result = endpoint->ops->control(endpoint, LF_ENABLE, NULL);
    provider->registers = (info->domain->mr_mode & LF_MR_LOCAL) != 0;
    return result;
}

int provider_open(struct provider *provider, const char *library, const char *name, const char *domain,
                  const char *address, char *why, size_t size) {
    struct entry_points points;
    struct lf_info *info = NULL;
    *provider = (struct provider){.wait = -1};
    if (load(&points, library, why, size)) return -1;
    int result = find(&points, name, domain, address, &info);
    if (result) {
        char available[1024];
        list(&points, available, sizeof available);
        snprintf(why, size, "libfabric offers no %s%s%s here that sends tagged messages in order (%s). It offers: %s",
                 name, domain ? "/" : "", domain ? domain : "", points.strerror(-result), available);
        return -1;
    }
    result = open_objects(provider, &points, info);
    points.freeinfo(info);
    if (result == 0) return 0;
    snprintf(why, size, "libfabric's %s could not be opened: %s", name, points.strerror(-result));
    provider_close(provider);
    return -1;
}

int provider_register(struct provider *provider, void *start, size_t size, void **descriptor) {
    *descriptor = NULL;
    if (!provider->registers) return 0;
    size_t number = provider->region_count;
    struct lf_mr **regions = realloc(provider->regions, (number + 1) * sizeof *regions);
    if (!regions) return -ENOMEM;
    provider->regions = regions;
    /* A provider that does not choose keys itself wants a different key for each region. */
    int result = provider->domain->mr->reg(&provider->domain->fid, start, size, LF_SEND | LF_RECV, 0, number, 0,
                                           &regions[number], NULL);
    if (result) return result;
    provider->region_count++;
    *descriptor = regions[number]->descriptor;
    return 0;
}

int provider_may_wait(struct provider *provider) {
    struct lf_fid *waited = &provider->completions->fid;
    return provider->wait >= 0 && provider->fabric->ops->trywait(provider->fabric, &waited, 1) == 0;
}

static void close_one(void *opened) {
    /* Every object of libfabric begins with a struct fid. */
    struct lf_fid *fid = opened;
    if (fid) fid->ops->close(fid);
}

void provider_close(struct provider *provider) {
    /* libfabric refuses to close an object that another open one depends on, hence this order. */
    close_one(provider->endpoint);
    for (size_t i = 0; i < provider->region_count; i++) close_one(provider->regions[i]);
    free(provider->regions);
    close_one(provider->completions);
    close_one(provider->addresses);
    close_one(provider->domain);
    close_one(provider->fabric);
    *provider = (struct provider){.wait = -1};
}
