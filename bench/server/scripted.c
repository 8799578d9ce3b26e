/* The scripted MCP server of the bench: newline-delimited JSON-RPC over stdio, made so that it is never the bottleneck.
 *
 *     scripted [--tools N] [--modern] [--mark TEXT]
 *
 * --tools   lists N tools of about 1.6 kB besides its own (echo, big, touch), all on one page, built once
 * --modern  speaks 2026-07-28; else the handshake revisions, and server/discover is an unknown method
 * --mark    is ignored: text by which the bench finds its servers again
 * Under a name that ends in "-cpuN" it runs on core N alone: no client has to pass that on.
 *
 * Tools: echo {"text"} gives the text back; big {"bytes"} gives one text of so many bytes; touch announces that the
 * list has changed, and it has: its own description counts the touches.
 * Answers come in order; the answers to all messages of one read leave in one write. Exits at the end of stdin.
 * The same in Python, for machines without a compiler: scripted.py.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { READ_SIZE = 1 << 18, COUNT_WIDTH = 8 };

typedef struct {
    char *data;
    size_t len, cap;
} Buffer;

typedef struct {
    const char *at;
    size_t len;
} Slice;

static int modern = 0;
static Buffer in, out, list_head, list_tail;
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
    puts_(&out, "{\"jsonrpc\":\"2.0\",\"id\":");
    put(&out, id.at, id.len);
    puts_(&out, modern ? ",\"result\":{\"resultType\":\"complete\"," : ",\"result\":{");
}

static void end_result(void) { puts_(&out, "}}\n"); }

static void refuse(Slice id, const char *error) {
    puts_(&out, "{\"jsonrpc\":\"2.0\",\"id\":");
    put(&out, id.at, id.len);
    puts_(&out, ",\"error\":");
    puts_(&out, error);
    puts_(&out, "}\n");
}

static void initialize(Slice id, Slice params) {
    static const char *known[] = {"\"2024-11-05\"", "\"2025-03-26\"", "\"2025-06-18\"", "\"2025-11-25\""};
    Slice asked = member(params, "protocolVersion");
    const char *spoken = known[3];
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (is(asked, known[i])) spoken = known[i];
    begin_result(id);
    puts_(&out, "\"protocolVersion\":");
    puts_(&out, spoken);
    puts_(&out, ",\"capabilities\":{\"tools\":{\"listChanged\":true}},"
                "\"serverInfo\":{\"name\":\"scripted\",\"version\":\"1\"}");
    end_result();
}

static void discover(Slice id) {
    begin_result(id);
    puts_(&out, "\"supportedVersions\":[\"2026-07-28\"],\"capabilities\":{\"tools\":{\"listChanged\":true}},"
                "\"ttlMs\":0,\"cacheScope\":\"private\","
                "\"_meta\":{\"io.modelcontextprotocol/serverInfo\":{\"name\":\"scripted\",\"version\":\"1\"}}");
    end_result();
}

/* Acknowledged and then open until the end: the id is the subscription's. */
static Buffer subscription;

static void listen_(Slice id) {
    subscription.len = 0;
    put(&subscription, id.at, id.len);
    puts_(&out, "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/subscriptions/acknowledged\",\"params\":{"
                "\"notifications\":{\"toolsListChanged\":true},"
                "\"_meta\":{\"io.modelcontextprotocol/subscriptionId\":");
    put(&out, id.at, id.len);
    puts_(&out, "}}}\n");
}

static void list_changed(void) {
    puts_(&out, "{\"jsonrpc\":\"2.0\",\"method\":\"notifications/tools/list_changed\"");
    if (subscription.len) {
        puts_(&out, ",\"params\":{\"_meta\":{\"io.modelcontextprotocol/subscriptionId\":");
        put(&out, subscription.data, subscription.len);
        puts_(&out, "}}");
    }
    puts_(&out, "}\n");
}

static void text_result(Slice id, Slice json_string) {
    begin_result(id);
    puts_(&out, "\"content\":[{\"type\":\"text\",\"text\":");
    put(&out, json_string.at, json_string.len);
    puts_(&out, "}]");
    end_result();
}

static void big(Slice id, size_t size) {
    static const char prose[] =
        "The harbour master counts the boats at dusk, and writes down each that has come in since the morning: "
        "its name, its berth, what it carries and who has paid. Whatever is not in the book by night is not there. ";
    begin_result(id);
    puts_(&out, "\"content\":[{\"type\":\"text\",\"text\":\"");
    room(&out, size);
    for (size_t left = size; left;) {
        size_t part = left < sizeof prose - 1 ? left : sizeof prose - 1;
        put(&out, prose, part);
        left -= part;
    }
    puts_(&out, "\"}]");
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
    if (modern) puts_(&out, "\"ttlMs\":0,\"cacheScope\":\"private\",");
    put(&out, list_head.data, list_head.len);
    put(&out, list_tail.data, list_tail.len);
    end_result();
}

static void answer(Slice message) {
    Slice id = member(message, "id"), method = member(message, "method"), params = member(message, "params");
    if (!id.at || !method.at) return; /* a notification, or an answer: nothing was asked */
    if (is(method, "\"tools/call\"")) call(id, params);
    else if (is(method, "\"tools/list\"")) list(id);
    else if (is(method, "\"initialize\"") && !modern) initialize(id, params);
    else if (is(method, "\"server/discover\"") && modern) discover(id);
    else if (is(method, "\"subscriptions/listen\"") && modern) listen_(id);
    else if (is(method, "\"ping\"")) {
        puts_(&out, "{\"jsonrpc\":\"2.0\",\"id\":");
        put(&out, id.at, id.len);
        puts_(&out, ",\"result\":{}}\n");
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
    for (size_t done = 0; done < out.len;) {
        ssize_t n = write(1, out.data + done, out.len - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) exit(0); /* nobody reads any more */
        done += (size_t)n;
    }
    out.len = 0;
}

int main(int argc, char **argv) {
    unsigned long tools = 0;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--modern")) modern = 1;
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
        if (out.len) write_out();
    }
}
