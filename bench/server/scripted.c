/* The scripted MCP server of the bench, made so that it is never the bottleneck: newline-delimited JSON-RPC over stdio,
 * or Streamable HTTP on loopback.
 *
 *     scripted [--tools N] [--modern] [--mark TEXT] [--http [--ports N] [--sse] [--session]]
 *
 * --tools   lists N tools of about 1.6 kB besides its own (echo, big, touch), all on one page, built once
 * --modern  speaks 2026-07-28; else the handshake revisions, and server/discover is an unknown method
 * --mark    is ignored: text by which the bench finds its servers again
 * --http    listens on 127.0.0.1, and says on its first line at which port; any path will do
 * --ports   listens at N ports, each an origin of its own, and names them all, with a space between
 * --sse     answers by a stream of one event, and not by a JSON body
 * --session gives a session id to each initialize, and asks for none
 * Under a name that ends in "-cpuN" it runs on core N alone: no client has to pass that on.
 *
 * Tools: echo {"text"} gives the text back; big {"bytes"} gives one text of so many bytes; touch announces that the
 * list has changed, and it has: its own description counts the touches. Over HTTP nothing is announced.
 * Answers come in order; the answers to all messages of one read leave in one write. Exits at the end of stdin, over
 * HTTP too.
 * The same in Python, for machines without a compiler: scripted.py.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { READ_SIZE = 1 << 18, COUNT_WIDTH = 8, LENGTH_WIDTH = 10 };

typedef struct {
    char *data;
    size_t len, cap;
} Buffer;

typedef struct {
    const char *at;
    size_t len;
} Slice;

static int modern = 0, http = 0, sse = 0, sessions = 0;
static Buffer in, piped, list_head, list_tail;
static Buffer *out = &piped; /* where answers go: to stdout, or to the connection whose request is answered */
static size_t count_at; /* where the count of touches stands in list_tail */
static unsigned long touches = 0;

static const Slice NOTHING = {NULL, 0};

static void room(Buffer *b, size_t more) {
    if (b->len + more <= b->cap) return;
    size_t cap = b->cap ? b->cap : READ_SIZE;
    while (cap < b->len + more) cap *= 2;
    char *data = realloc(b->data, cap);
    if (!data) {
        perror("scripted");
        exit(1);
    }
    b->data = data;
    b->cap = cap;
}

static void put(Buffer *b, const char *at, size_t len) {
    room(b, len);
    memcpy(b->data + b->len, at, len);
    b->len += len;
}

static void puts_(Buffer *b, const char *text) { put(b, text, strlen(text)); }

static int is(Slice s, const char *text) { return s.len == strlen(text) && !memcmp(s.at, text, s.len); }

/* --- reading JSON: values are found, not understood */

static const char *skip_space(const char *p, const char *end) {
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\r' || *p == '\n')) p++;
    return p;
}

static const char *skip_string(const char *p, const char *end) {
    for (p++; p < end && *p != '"'; p++)
        if (*p == '\\') p++;
    return p < end ? p + 1 : end;
}

static const char *skip_value(const char *p, const char *end) {
    if (p >= end) return end;
    if (*p == '"') return skip_string(p, end);
    if (*p == '{' || *p == '[') {
        int depth = 0;
        while (p < end) {
            if (*p == '"') {
                p = skip_string(p, end);
                continue;
            }
            if (*p == '{' || *p == '[') depth++;
            if (*p == '}' || *p == ']') {
                if (--depth == 0) return p + 1;
            }
            p++;
        }
        return end;
    }
    while (p < end && !strchr(",}] \t\r\n", *p)) p++;
    return p;
}

/* The value of a member of an object, at its top level and in any order; NOTHING where it is absent. */
static Slice member(Slice object, const char *name) {
    const char *p = object.at, *end = object.at + object.len;
    if (!p || p >= end || *p != '{') return NOTHING;
    p = skip_space(p + 1, end);
    while (p < end && *p == '"') {
        Slice key = {p + 1, 0};
        p = skip_string(p, end);
        key.len = (size_t)(p - key.at) - 1;
        p = skip_space(p, end);
        if (p >= end || *p != ':') return NOTHING;
        p = skip_space(p + 1, end);
        const char *begin = p;
        p = skip_value(p, end);
        if (is(key, name)) return (Slice){begin, (size_t)(p - begin)};
        p = skip_space(p, end);
        if (p < end && *p == ',') p = skip_space(p + 1, end);
    }
    return NOTHING;
}

/* --- answers */

static void begin_result(Slice id) {
    puts_(out, "{\"jsonrpc\":\"2.0\",\"id\":");
    put(out, id.at, id.len);
    puts_(out, modern ? ",\"result\":{\"resultType\":\"complete\"," : ",\"result\":{");
}

static void end_result(void) { puts_(out, "}}\n"); }

static void refuse(Slice id, const char *error) {
    puts_(out, "{\"jsonrpc\":\"2.0\",\"id\":");
    put(out, id.at, id.len);
    puts_(out, ",\"error\":");
    puts_(out, error);
    puts_(out, "}\n");
}

static void initialize(Slice id, Slice params) {
    static const char *known[] = {"\"2024-11-05\"", "\"2025-03-26\"", "\"2025-06-18\"", "\"2025-11-25\""};
    Slice asked = member(params, "protocolVersion");
    const char *spoken = known[3];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (is(asked, known[i])) spoken = known[i];
    begin_result(id);
    puts_(out, "\"protocolVersion\":");
    puts_(out, spoken);
    puts_(out, ",\"capabilities\":{\"tools\":");
    puts_(out, http ? "{}" : "{\"listChanged\":true}");
    puts_(out, "},\"serverInfo\":{\"name\":\"scripted\",\"version\":\"1\"}");
    end_result();
}

static void discover(Slice id) {
    begin_result(id);
    puts_(out, "\"supportedVersions\":[\"2026-07-28\"],\"capabilities\":{\"tools\":");
    puts_(out, http ? "{}" : "{\"listChanged\":true}");
    puts_(out, "},\"ttlMs\":0,\"cacheScope\":\"private\","
                "\"_meta\":{\"io.modelcontextprotocol/serverInfo\":{\"name\":\"scripted\",\"version\":\"1\"}}");
    end_result();
}

/* Acknowledged and then open until the end: the id is the subscription's. */
static Buffer subscription;

static void listen_(Slice id) {
    subscription.len = 0;
    put(&subscription, id.at, id.len);
    puts_(out, "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/subscriptions/acknowledged\",\"params\":{"
                "\"notifications\":{\"toolsListChanged\":true},"
                "\"_meta\":{\"io.modelcontextprotocol/subscriptionId\":");
    put(out, id.at, id.len);
    puts_(out, "}}}\n");
}

static void list_changed(void) {
    if (http) return;
    puts_(out, "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"");
    if (subscription.len) {
        puts_(out, ",\"params\":{\"_meta\":{\"io.modelcontextprotocol/subscriptionId\":");
        put(out, subscription.data, subscription.len);
        puts_(out, "}}");
    }
    puts_(out, "}\n");
}

static void text_result(Slice id, Slice json_string) {
    begin_result(id);
    puts_(out, "\"content\":[{\"type\":\"text\",\"text\":");
    put(out, json_string.at, json_string.len);
    puts_(out, "}]");
    end_result();
}

static void big(Slice id, size_t size) {
    static const char prose[] =
        "The harbour master counts the boats at dusk, and writes down each that has come in since the morning: "
        "its name, its berth, what it carries and who has paid. Whatever is not in the book by night is not there. ";
    begin_result(id);
    puts_(out, "\"content\":[{\"type\":\"text\",\"text\":\"");
    room(out, size);
    for (size_t left = size; left;) {
        size_t part = left < sizeof prose - 1 ? left : sizeof prose - 1;
        put(out, prose, part);
        left -= part;
    }
    puts_(out, "\"}]");
    end_result();
}

static void call(Slice id, Slice params) {
    Slice name = member(params, "name"), arguments = member(params, "arguments");
    if (is(name, "\"echo\"")) {
        Slice text = member(arguments, "text");
        if (!text.at || *text.at != '"') text = (Slice){"\"hello\"", 7};
        text_result(id, text);
    } else if (is(name, "\"big\"")) {
        Slice bytes = member(arguments, "bytes");
        big(id, bytes.at ? strtoull(bytes.at, NULL, 10) : 0);
    } else if (is(name, "\"touch\"")) {
        char count[COUNT_WIDTH + 3];
        snprintf(count, sizeof count, "\"%0*lu\"", COUNT_WIDTH, ++touches % 100000000UL);
        memcpy(list_tail.data + count_at, count + 1, COUNT_WIDTH);
        list_changed();
        text_result(id, (Slice){count, COUNT_WIDTH + 2});
    } else {
        refuse(id, "{\"code\":-32602,\"message\":\"Unknown tool\"}");
    }
}

static void list(Slice id) {
    begin_result(id);
    if (modern) puts_(out, "\"ttlMs\":0,\"cacheScope\":\"private\",");
    put(out, list_head.data, list_head.len);
    put(out, list_tail.data, list_tail.len);
    end_result();
}

static void answer(Slice message) {
    Slice id = member(message, "id"), method = member(message, "method"), params = member(message, "params");
    if (!id.at || !method.at) return; /* a notification, or an answer: nothing was asked */
    if (is(method, "\"tools/call\"")) call(id, params);
    else if (is(method, "\"tools/list\"")) list(id);
    else if (is(method, "\"initialize\"") && !modern) initialize(id, params);
    else if (is(method, "\"server/discover\"") && modern) discover(id);
    else if (is(method, "\"subscriptions/listen\"") && modern && !http) listen_(id);
    else if (is(method, "\"ping\"")) {
        puts_(out, "{\"jsonrpc\":\"2.0\",\"id\":");
        put(out, id.at, id.len);
        puts_(out, ",\"result\":{}}\n");
    } else refuse(id, "{\"code\":-32601,\"message\":\"Method not found\"}");
}

/* --- the list */

static void build_list(unsigned long tools) {
    /* %05lu stands twice: in the name and in the description. About 1.6 kB each, as real servers write them. */
    static const char tool[] =
        "{\"name\":\"book_berth_%05lu\",\"title\":\"Book a berth\",\"description\":\"Books berth block %05lu for a boat. "
        "Use it once the boat's size, its draught and the days are known; ask for them first if they are not. "
        "It fails when the berth is taken, when the boat is too large for it, or when the harbour is closed; the text "
        "of the failure says which, and names the nearest berth that is free. What is booked stays booked until it is "
        "paid or given back; the answer holds the number of the booking, and every later question needs it.\","
        "\"inputSchema\":{\"$schema\":\"https://json-schema.org/draft/2020-12/schema\",\"type\":\"object\","
        "\"properties\":{"
        "\"boat\":{\"type\":\"object\",\"description\":\"The boat that comes in\",\"properties\":{"
        "\"name\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":80},"
        "\"length_m\":{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":120},"
        "\"draught_m\":{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":12},"
        "\"kind\":{\"type\":\"string\",\"enum\":[\"sail\",\"motor\",\"fishing\",\"pilot\",\"other\"]}},"
        "\"required\":[\"name\",\"length_m\"],\"additionalProperties\":false},"
        "\"from\":{\"type\":\"string\",\"format\":\"date\",\"description\":\"First day, as in 2026-05-01\"},"
        "\"nights\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":365,\"default\":1},"
        "\"services\":{\"type\":\"array\",\"uniqueItems\":true,\"items\":{\"type\":\"string\","
        "\"enum\":[\"water\",\"power\",\"fuel\",\"crane\"]},\"description\":\"What the boat needs at the quay\"},"
        "\"contact\":{\"anyOf\":[{\"type\":\"string\",\"format\":\"email\"},{\"type\":\"null\"}],\"default\":null}},"
        "\"required\":[\"boat\",\"from\"],\"additionalProperties\":false},"
        "\"annotations\":{\"readOnlyHint\":false,\"destructiveHint\":false,\"idempotentHint\":true}},";
    char text[sizeof tool + 32];
    puts_(&list_head, "\"tools\":[");
    for (unsigned long n = 0; n < tools; n++) {
        int len = snprintf(text, sizeof text, tool, n, n);
        put(&list_head, text, (size_t)len);
    }
    puts_(&list_tail,
          "{\"name\":\"echo\",\"description\":\"Gives a text back\",\"inputSchema\":{\"type\":\"object\","
          "\"properties\":{\"text\":{\"type\":\"string\"}},\"required\":[\"text\"]}},"
          "{\"name\":\"big\",\"description\":\"Gives a text of a size\",\"inputSchema\":{\"type\":\"object\","
          "\"properties\":{\"bytes\":{\"type\":\"integer\"}},\"required\":[\"bytes\"]}},"
          "{\"name\":\"touch\",\"description\":\"Changes the list. Times it was called: ");
    count_at = list_tail.len;
    puts_(&list_tail, "00000000\",\"inputSchema\":{\"type\":\"object\",\"properties\":{}}}]");
}

/* --- the pipes */

static void write_out(void) {
    for (size_t done = 0; done < out->len;) {
        ssize_t n = write(1, out->data + done, out->len - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) exit(0); /* nobody reads any more */
        done += (size_t)n;
    }
    out->len = 0;
}

static int over_pipes(void) {
    for (;;) {
        room(&in, READ_SIZE);
        ssize_t n = read(0, in.data + in.len, READ_SIZE);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return 0;
        char *begin = in.data, *seen = in.data + in.len, *end;
        in.len += (size_t)n;
        while ((end = memchr(seen, '\n', (size_t)(in.data + in.len - seen)))) {
            const char *first = skip_space(begin, end);
            answer((Slice){first, (size_t)(end - first)});
            begin = seen = end + 1;
        }
        in.len -= (size_t)(begin - in.data);
        memmove(in.data, begin, in.len);
        if (out->len) write_out();
    }
}

/* --- HTTP/1.1: kept connections, requests one after another, bodies by Content-Length both ways */

typedef struct {
    int fd, listens, waits; /* waits: until it can be written to again */
    Buffer in, out;
    size_t done; /* of out, written so far */
} Connection;

static int poller;
static unsigned long session = 0;

static void watch(Connection *c, int how, unsigned events) {
    struct epoll_event event = {.events = events, .data.ptr = c};
    if (epoll_ctl(poller, how, c->fd, &event) < 0) {
        perror("scripted");
        exit(1);
    }
}

static Connection *connection(int fd, int listens) {
    Connection *c = calloc(1, sizeof *c);
    if (!c) exit(1);
    c->fd = fd;
    c->listens = listens;
    watch(c, EPOLL_CTL_ADD, EPOLLIN);
    return c;
}

static void drop(Connection *c) {
    close(c->fd);
    free(c->in.data);
    free(c->out.data);
    free(c);
}

static void serve_at(unsigned long ports) {
    for (unsigned long n = 0; n < ports; n++) {
        struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t size = sizeof at;
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0 || bind(fd, (struct sockaddr *)&at, size) || listen(fd, 1024) ||
            getsockname(fd, (struct sockaddr *)&at, &size)) {
            perror("scripted");
            exit(1);
        }
        connection(fd, 1);
        printf("%s%d", n ? " " : "", ntohs(at.sin_port));
    }
    printf("\n");
    fflush(stdout);
}

/* The value of a header, without space around it; NOTHING where it is absent. */
static Slice header(Slice head, const char *name) {
    size_t len = strlen(name);
    const char *p = head.at, *end = head.at + head.len, *line;
    while ((line = memchr(p, '\n', (size_t)(end - p)))) {
        p = line + 1;
        if ((size_t)(end - p) <= len || p[len] != ':' || strncasecmp(p, name, len)) continue;
        const char *value = skip_space(p + len + 1, end);
        const char *last = memchr(value, '\r', (size_t)(end - value));
        return (Slice){value, (size_t)((last ? last : end) - value)};
    }
    return NOTHING;
}

static void bare(const char *status) {
    puts_(out, "HTTP/1.1 ");
    puts_(out, status);
    puts_(out, "\r\nContent-Length: 0\r\n\r\n");
}

/* The answer to a POST. The length of its body is known afterwards, and written where zeros stand. */
static void post(Slice body) {
    const char *first = skip_space(body.at, body.at + body.len);
    Slice message = {first, (size_t)(body.at + body.len - first)};
    Slice method = member(message, "method");
    if (!member(message, "id").at || !method.at) {
        bare("202 Accepted");
        return;
    }
    puts_(out, sse ? "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                   : "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n");
    if (sessions && is(method, "\"initialize\"")) {
        char line[64];
        snprintf(line, sizeof line, "Mcp-Session-Id: session-%lu\r\n", ++session);
        puts_(out, line);
    }
    puts_(out, "Content-Length: ");
    size_t at = out->len;
    puts_(out, "0000000000\r\n\r\n");
    size_t begin = out->len;
    if (sse) puts_(out, "event: message\ndata: ");
    answer(message);
    if (sse) puts_(out, "\n");
    char length[LENGTH_WIDTH + 1];
    snprintf(length, sizeof length, "%0*zu", LENGTH_WIDTH, out->len - begin);
    memcpy(out->data + at, length, LENGTH_WIDTH);
}

/* Answer what has come as a whole; 0 where it cannot be understood. */
static int answer_all(Connection *c) {
    char *begin = c->in.data, *end = c->in.data + c->in.len, *blank;
    while ((blank = memmem(begin, (size_t)(end - begin), "\r\n\r\n", 4))) {
        Slice head = {begin, (size_t)(blank - begin)};
        Slice length = header(head, "content-length");
        size_t size = length.at ? strtoull(length.at, NULL, 10) : 0;
        char *body = blank + 4;
        if (header(head, "transfer-encoding").at) return 0;
        if ((size_t)(end - body) < size) break;
        if (!strncmp(begin, "POST ", 5)) post((Slice){body, size});
        else if (!strncmp(begin, "DELETE ", 7)) bare("200 OK");
        else bare("405 Method Not Allowed\r\nAllow: POST, DELETE");
        begin = body + size;
    }
    c->in.len = (size_t)(end - begin);
    memmove(c->in.data, begin, c->in.len);
    return 1;
}

/* Write what can be written; 0 once the connection is gone. */
static int flush(Connection *c) {
    while (c->done < c->out.len) {
        ssize_t n = send(c->fd, c->out.data + c->done, c->out.len - c->done, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno != EAGAIN) return 0;
        if (n < 0) break;
        c->done += (size_t)n;
    }
    int waits = c->done < c->out.len;
    if (!waits) c->done = c->out.len = 0;
    if (waits != c->waits) watch(c, EPOLL_CTL_MOD, waits ? EPOLLIN | EPOLLOUT : EPOLLIN);
    c->waits = waits;
    return 1;
}

static void accept_all(Connection *listener) {
    int fd, on = 1;
    while ((fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        connection(fd, 0);
    }
}

/* Read once, answer, write; 0 once the connection is gone. */
static int serve(Connection *c, unsigned events) {
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
        room(&c->in, READ_SIZE);
        ssize_t n = read(c->fd, c->in.data + c->in.len, READ_SIZE);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) return 1;
        if (n <= 0) return 0;
        c->in.len += (size_t)n;
        out = &c->out;
        if (!answer_all(c)) return 0;
    }
    return flush(c);
}

static int over_http(unsigned long ports) {
    static struct epoll_event ready[256];
    poller = epoll_create1(EPOLL_CLOEXEC);
    Connection *input = connection(0, 0);
    serve_at(ports);
    for (;;) {
        int count = epoll_wait(poller, ready, sizeof ready / sizeof *ready, -1);
        for (int i = 0; i < count; i++) {
            Connection *c = ready[i].data.ptr;
            char some[256];
            if (c == input) {
                if (read(0, some, sizeof some) <= 0) return 0;
            } else if (c->listens) accept_all(c);
            else if (!serve(c, ready[i].events)) drop(c);
        }
    }
}

int main(int argc, char **argv) {
    unsigned long tools = 0, ports = 1;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--modern")) modern = 1;
        else if (!strcmp(argv[i], "--http")) http = 1;
        else if (!strcmp(argv[i], "--sse")) sse = 1;
        else if (!strcmp(argv[i], "--session")) sessions = 1;
        else if (!strcmp(argv[i], "--ports")) ports = strtoul(value, NULL, 10), i++;
        else if (!strcmp(argv[i], "--mark")) i++;
        else if (!strcmp(argv[i], "--tools")) tools = strtoul(value, NULL, 10), i++;
        else {
            fprintf(stderr, "scripted: unknown argument %s\n", argv[i]);
            return 2;
        }
    }
    const char *name = strrchr(argv[0], '/'), *core = strstr(name ? name : argv[0], "-cpu");
    if (core) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(strtoul(core + 4, NULL, 10), &set);
        sched_setaffinity(0, sizeof set, &set); /* refused: it runs where it may */
    }
    build_list(tools);
    return http ? over_http(ports) : over_pipes();
}
