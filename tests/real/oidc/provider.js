// oidc-provider (certified) on a port of 127.0.0.1, with a resource that it protects and a few levers for tests.
//
//   node provider.js HOME PORT OPTIONS
//
// HOME is the folder with node_modules; OPTIONS is JSON, all optional:
//   path        path of the issuer, such as "/tenant"
//   clients     registered beforehand
//   documents   {URL: client ID metadata document}: what it finds there, without a network
//   resources   resources it knows besides /rs; every other one is refused (invalid_target)
//   scopes      scopes of the resources (default "a b c")
//   accessSeconds, refreshSeconds, nonces (true: DPoP proofs need them), offlineOnly (refresh tokens only for
//   offline_access), methods (token_endpoint_auth_methods)
//   heldToScopes true: a client may register its scopes, and is held to them
//   slash       true: it says that its issuer ends with a slash, of which the resource knows nothing
//   places      where its metadata is, of "oauth", "openid-inserted", "openid-appended" (default: the first and the last)
//   resourcePlaces  where that of the resource is, of "challenge" (the 401 names it), "path", "root" (default: the first
//               two; one that the challenge alone names is at a place of its own)
//   resourcePort    the resource is on this port, so another origin
//
// Besides the provider: /rs wants a token for itself (Bearer or DPoP), and speaks MCP (mcp_resource.js);
// GET /-/forget-clients, /-/expire (access tokens), /-/new-nonce (of the resource), /-/fail?times=N&status=S&at=A (the next requests of "token", "reg", "metadata" or
// "resource"; &after=S: with Retry-After), /-/drop?times=N (token requests: carried out, the answer is lost), /-/hold
// (token requests wait) and /-/release; /-/facts counts. No output but errors.

import http from 'node:http';
import { createHash, randomBytes } from 'node:crypto';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

import { Gate } from '../gate.js';
import { serveProtected } from '../mcp_resource.js';

const [, , home, port, text] = process.argv;
const options = JSON.parse(text || '{}');
const load = (file) => import(pathToFileURL(path.join(home, 'node_modules', file)).href);

console.info = () => {};
console.warn = () => {};  // it warns of everything that is made for development, as this is
const { default: Provider, errors } = await load('oidc-provider/lib/index.js');
const { default: MemoryAdapter } = await load('oidc-provider/lib/adapters/memory_adapter.js');
const jose = await load('jose/dist/webapi/index.js');

const origin = `http://127.0.0.1:${port}`;
const mount = options.path ?? '';
const issuer = origin + mount;
const resourceOrigin = `http://127.0.0.1:${options.resourcePort ?? port}`;
const resource = `${resourceOrigin}/rs`;
const places = options.places ?? ['oauth', 'openid-appended'];
const resourcePlaces = options.resourcePlaces ?? ['challenge', 'path'];
const audiences = [resource, ...(resourcePlaces.includes('root') ? [resourceOrigin] : [])];
const scopes = options.scopes ?? 'a b c';
const facts = { token: 0, success: 0, revokedFamilies: 0, registered: 0, deleted: 0, errors: [] };
const levers = { fail: {}, drop: 0 };
const gate = new Gate();

class Store extends Map {
  get(key) {
    const entry = super.get(key);
    if (entry === undefined || entry.until <= Date.now()) return undefined;
    return entry.value;
  }

  set(key, value, { maxAge } = {}) {
    return super.set(key, { value, until: maxAge === undefined ? Infinity : Date.now() + maxAge });
  }

  forget(model) {
    for (const key of [...this.keys()]) if (key.startsWith(`${model}:`)) this.delete(key);
  }
}
const store = new Store();

const provider = new Provider(options.slash ? `${issuer}/` : issuer, {
  adapter: class extends MemoryAdapter {
    constructor(model) { super(model, store); }
  },
  clients: options.clients ?? [],
  clientAuthMethods: options.methods
    ?? ['none', 'client_secret_basic', 'client_secret_post', 'private_key_jwt'],
  scopes: ['openid', 'offline_access', ...(options.heldToScopes ? scopes.split(' ') : [])],
  cookies: {
    keys: [randomBytes(16).toString('hex')],
    // Of its own, since browsers keep the cookies of all ports of a host together.
    names: Object.fromEntries(['interaction', 'resume', 'session'].map((each) => [each, `_${each}_${port}`])),
  },
  findAccount: async (ctx, id) => ({ accountId: id, claims: async () => ({ sub: id }) }),
  rotateRefreshToken: true,
  issueRefreshToken: async (ctx, client, code) => client.grantTypeAllowed('refresh_token')
    && (!options.offlineOnly || code.scopes.has('offline_access')),
  expiresWithSession: async () => false,
  ttl: {
    AccessToken: options.accessSeconds ?? 3600,
    ClientCredentials: options.accessSeconds ?? 3600,
    RefreshToken: options.refreshSeconds ?? 86400,
    AuthorizationCode: 60,
    DeviceCode: 300,
    Grant: 86400,
    Interaction: 600,
    Session: 86400,
  },
  async fetch(url, request) {
    const document = options.documents?.[url];
    if (!document) throw new Error(`nothing at ${url}`);
    return new Response(JSON.stringify(document), { headers: { 'content-type': 'application/json' } });
  },
  features: {
    devInteractions: { enabled: true },
    registration: { enabled: true },
    registrationManagement: { enabled: true },
    clientCredentials: { enabled: true },
    deviceFlow: { enabled: true },
    introspection: { enabled: true },
    revocation: { enabled: true },
    pushedAuthorizationRequests: { enabled: true },
    clientIdMetadataDocument: { enabled: true, ack: 'draft-02' },
    dPoP: {
      enabled: true,
      nonceSecret: randomBytes(32),
      requireNonce: () => Boolean(options.nonces),
    },
    resourceIndicators: {
      enabled: true,
      defaultResource: () => undefined,
      useGrantedResource: () => true,
      getResourceServerInfo(ctx, indicator) {
        if (![...audiences, ...(options.resources ?? [])].includes(indicator)) {
          throw new errors.InvalidTarget();
        }
        return { scope: scopes, accessTokenFormat: 'opaque', accessTokenTTL: options.accessSeconds ?? 3600 };
      },
    },
  },
});
provider.on('grant.success', () => { facts.success += 1; });
provider.on('grant.revoked', () => { facts.revokedFamilies += 1; });
provider.on('registration_create.success', () => { facts.registered += 1; });
provider.on('registration_delete.success', () => { facts.deleted += 1; });
provider.on('server_error', (ctx, error) => { console.error(error); });
for (const name of ['grant.error', 'authorization.error', 'registration_create.error', 'revocation.error']) {
  provider.on(name, (ctx, error) => {
    facts.errors.push(`${name}: ${error.error} ${error.error_description ?? ''} ${error.error_detail ?? ''}`);
  });
}
const answer = provider.callback();

// --- the resource

let rsNonce = 'rs-1';
const seenJti = new Set();

const WELL_KNOWN = '/.well-known/oauth-protected-resource';
const documents = {
  challenge: resourcePlaces.includes('path') ? `${WELL_KNOWN}/rs` : '/about-the-resource',
  path: `${WELL_KNOWN}/rs`,
  root: WELL_KNOWN,
};

function refuse(response, scheme, error) {
  const params = [
    ...(error ? [`error="${error}"`] : []),
    ...(resourcePlaces.includes('challenge') ? [`resource_metadata="${resourceOrigin}${documents.challenge}"`] : []),
  ];
  response.writeHead(401, {
    'WWW-Authenticate': params.length ? `${scheme} ${params.join(', ')}` : scheme,
    ...(options.nonces ? { 'DPoP-Nonce': rsNonce } : {}),
  }).end();
}

async function proofFault(proof, request, token) {
  try {
    const { payload, protectedHeader } = await jose.jwtVerify(proof, jose.EmbeddedJWK, { typ: 'dpop+jwt' });
    if (options.nonces && payload.nonce !== rsNonce) return 'use_dpop_nonce';
    const ath = createHash('sha256').update(token.jti).digest('base64url');
    const jkt = await jose.calculateJwkThumbprint(protectedHeader.jwk);
    const fresh = Math.abs(Date.now() / 1000 - payload.iat) < 60 && !seenJti.has(payload.jti);
    seenJti.add(payload.jti);
    const fits = payload.htm === request.method && payload.htu === resource && payload.ath === ath
      && jkt === token.jkt && protectedHeader.jwk.d === undefined;
    return fits && fresh ? null : 'invalid_dpop_proof';
  } catch {
    return 'invalid_dpop_proof';
  }
}

async function serveResource(request, response) {
  const [scheme, value] = (request.headers.authorization ?? '').split(' ');
  const token = value && (await provider.AccessToken.find(value) ?? await provider.ClientCredentials.find(value));
  if (!token || !audiences.includes(token.aud)) return refuse(response, 'Bearer', value && 'invalid_token');
  if (token.jkt) {
    if (scheme !== 'DPoP') return refuse(response, 'DPoP', 'invalid_token');
    const fault = await proofFault(request.headers.dpop ?? '', request, token);
    if (fault) return refuse(response, 'DPoP', fault);
  } else if (scheme !== 'Bearer') return refuse(response, 'Bearer', 'invalid_token');
  return serveProtected(request, response, { client: token.clientId, scope: token.scope ?? '' });
}

// --- the levers

function serveLever(url, response) {
  const times = Number(url.searchParams.get('times') ?? 1);
  const name = url.pathname.slice(3);
  if (name === 'forget-clients') store.forget('Client');
  else if (name === 'expire') store.forget('AccessToken');
  else if (name === 'new-nonce') rsNonce = `rs-${randomBytes(6).toString('hex')}`;
  else if (name === 'fail') {
    levers.fail[url.searchParams.get('at') ?? 'token'] = {
      times, status: Number(url.searchParams.get('status') ?? 503), after: url.searchParams.get('after'),
    };
  }
  else if (name === 'drop') levers.drop = times;
  else if (name === 'hold') gate.shut();
  else if (name === 'release') gate.open();
  else if (name !== 'facts') return response.writeHead(404).end();
  response.writeHead(200, { 'Content-Type': 'application/json' });
  return response.end(JSON.stringify(facts));
}

function fails(what, response) {
  const lever = levers.fail[what];
  if (!lever?.times) return false;
  lever.times -= 1;
  response.writeHead(lever.status, {
    'Content-Type': 'text/html', ...(lever.after ? { 'Retry-After': lever.after } : {}),
  }).end('<h1>not now</h1>');
  return true;
}

function serveResourceSide(url, request, response) {
  if (url.pathname === '/rs') return serveResource(request, response);
  if (!resourcePlaces.some((each) => documents[each] === url.pathname)) return response.writeHead(404).end();
  if (fails('resource', response)) return undefined;
  // The document at the root is that of the origin.
  const said = url.pathname === WELL_KNOWN ? resourceOrigin : resource;
  response.writeHead(200, { 'Content-Type': 'application/json' });
  return response.end(JSON.stringify({
    resource: said, authorization_servers: [issuer], scopes_supported: scopes.split(' '),
  }));
}

const SHAPES = {
  oauth: `/.well-known/oauth-authorization-server${mount}`,
  'openid-inserted': `/.well-known/openid-configuration${mount}`,
  'openid-appended': `${mount}/.well-known/openid-configuration`,
};

const server = http.createServer(async (request, response) => {
  const url = new URL(request.url, origin);
  if (url.pathname.startsWith('/-/')) return serveLever(url, response);
  if (url.pathname === '/rs' || Object.values(documents).includes(url.pathname)) {
    return serveResourceSide(url, request, response);
  }
  if (url.pathname.includes('/.well-known/')) {
    if (!places.some((each) => SHAPES[each] === url.pathname)) return response.writeHead(404).end();
    if (fails('metadata', response)) return undefined;
    request.url = SHAPES['openid-appended'];
  } else if (!url.pathname.startsWith(`${mount}/`)) return response.writeHead(404).end();
  if (url.pathname === `${mount}/reg` && fails('reg', response)) return undefined;
  if (url.pathname === `${mount}/token`) {
    facts.token += 1;
    await gate.passed();
    if (fails('token', response)) return undefined;
    if (levers.drop > 0) {
      levers.drop -= 1;
      response.end = () => { request.socket.destroy(); return response; };
    }
  }
  request.originalUrl = request.url;
  request.url = request.url.slice(mount.length) || '/';
  return answer(request, response);
});
if (options.resourcePort) {
  const apart = http.createServer((request, response) => serveResourceSide(
    new URL(request.url, resourceOrigin), request, response,
  ));
  await new Promise((resolve) => { apart.listen(options.resourcePort, '127.0.0.1', resolve); });
}
server.listen(Number(port), '127.0.0.1');
