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
//
// Besides the provider: /rs wants a token for itself (Bearer or DPoP); POST /-/forget-clients, /-/expire (access tokens),
// /-/fail?times=N&status=S (the next token requests), /-/drop?times=N (carried out, the answer is lost);
// GET /-/facts counts. No output but errors.

import http from 'node:http';
import { createHash, randomBytes } from 'node:crypto';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

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
const resource = `${origin}/rs`;
const scopes = options.scopes ?? 'a b c';
const facts = { token: 0, success: 0, revokedFamilies: 0, registered: 0, deleted: 0, errors: [] };
const levers = { fail: 0, status: 503, drop: 0 };

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

const provider = new Provider(issuer, {
  adapter: class extends MemoryAdapter {
    constructor(model) { super(model, store); }
  },
  clients: options.clients ?? [],
  clientAuthMethods: options.methods
    ?? ['none', 'client_secret_basic', 'client_secret_post', 'private_key_jwt'],
  scopes: ['openid', 'offline_access'],
  cookies: { keys: [randomBytes(16).toString('hex')] },
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
        if (indicator !== resource && !(options.resources ?? []).includes(indicator)) {
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

function refuse(response, scheme, error) {
  const challenge = error ? ` error="${error}",` : '';
  response.writeHead(401, {
    'WWW-Authenticate': `${scheme}${challenge} resource_metadata="${origin}/.well-known/oauth-protected-resource/rs"`,
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
  if (!token || token.aud !== resource) return refuse(response, 'Bearer', value && 'invalid_token');
  if (token.jkt) {
    if (scheme !== 'DPoP') return refuse(response, 'DPoP', 'invalid_token');
    const fault = await proofFault(request.headers.dpop ?? '', request, token);
    if (fault) return refuse(response, 'DPoP', fault);
  } else if (scheme !== 'Bearer') return refuse(response, 'Bearer', 'invalid_token');
  response.writeHead(200, { 'Content-Type': 'application/json' });
  return response.end(JSON.stringify({ client: token.clientId, scope: token.scope ?? '' }));
}

// --- the levers

function serveLever(url, response) {
  const times = Number(url.searchParams.get('times') ?? 1);
  const name = url.pathname.slice(3);
  if (name === 'forget-clients') store.forget('Client');
  else if (name === 'expire') store.forget('AccessToken');
  else if (name === 'new-nonce') rsNonce = `rs-${randomBytes(6).toString('hex')}`;
  else if (name === 'fail') Object.assign(levers, { fail: times, status: Number(url.searchParams.get('status') ?? 503) });
  else if (name === 'drop') levers.drop = times;
  else if (name !== 'facts') return response.writeHead(404).end();
  response.writeHead(200, { 'Content-Type': 'application/json' });
  return response.end(JSON.stringify(facts));
}

const server = http.createServer((request, response) => {
  const url = new URL(request.url, origin);
  if (url.pathname.startsWith('/-/')) return serveLever(url, response);
  if (url.pathname === '/rs') return serveResource(request, response);
  if (url.pathname === '/.well-known/oauth-protected-resource/rs') {
    response.writeHead(200, { 'Content-Type': 'application/json' });
    return response.end(JSON.stringify({ resource, authorization_servers: [issuer], scopes_supported: scopes.split(' ') }));
  }
  if (url.pathname === `/.well-known/oauth-authorization-server${mount}`) {
    request.url = `${mount}/.well-known/openid-configuration`;
  } else if (!url.pathname.startsWith(`${mount}/`)) return response.writeHead(404).end();
  if (url.pathname === `${mount}/token`) {
    facts.token += 1;
    if (levers.fail > 0) {
      levers.fail -= 1;
      return response.writeHead(levers.status, { 'Content-Type': 'text/html' }).end('<h1>not now</h1>');
    }
    if (levers.drop > 0) {
      levers.drop -= 1;
      response.end = () => { request.socket.destroy(); return response; };
    }
  }
  request.originalUrl = request.url;
  request.url = request.url.slice(mount.length) || '/';
  return answer(request, response);
});
server.listen(Number(port), '127.0.0.1');
