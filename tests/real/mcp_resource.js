// What the authorization servers of the tests protect, as far as it speaks MCP: of the handshake era, without sessions,
// with one tool, `whoami`, which says for which client and scopes the token of the call is.

const REVISION = '2025-11-25';

const EMPTY = { type: 'object', properties: {} };
const answers = {
  initialize: ({ protocolVersion }) => ({
    protocolVersion: protocolVersion ?? REVISION,
    capabilities: { tools: {} },
    serverInfo: { name: 'protected', version: '1' },
  }),
  ping: () => ({}),
  'tools/list': () => ({ tools: [{ name: 'whoami', description: 'Whose token this is', inputSchema: EMPTY }] }),
  'tools/call': (params, token) => ({ content: [{ type: 'text', text: JSON.stringify(token) }] }),
};

/** Answers a request whose token is right. `token`: {client, scope}. A GET without MCP gets that as JSON. */
export async function serveProtected(request, response, token) {
  const json = { 'Content-Type': 'application/json' };
  if (request.method === 'GET' && !(request.headers.accept ?? '').includes('text/event-stream')) {
    return response.writeHead(200, json).end(JSON.stringify(token));
  }
  if (request.method !== 'POST') return response.writeHead(405, { Allow: 'GET, POST' }).end();
  let body = '';
  for await (const piece of request) body += piece;
  const { id, method, params } = JSON.parse(body);
  if (id === undefined) return response.writeHead(202).end();
  const answer = answers[method];
  const outcome = answer
    ? { result: answer(params ?? {}, token) }
    : { error: { code: -32601, message: `no method ${method}` } };
  return response.writeHead(200, json).end(JSON.stringify({ jsonrpc: '2.0', id, ...outcome }));
}
