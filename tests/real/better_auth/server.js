// better-auth with its OAuth provider on a port of 127.0.0.1: in memory, with the pages that an application has around
// it, a resource that it protects and a few levers for tests.
//
//   node server.js HOME PORT OPTIONS
//
// HOME is the folder with node_modules; OPTIONS is JSON, all optional:
//   path        path of the issuer (default "/api/auth", where it usually stands)
//   clients     registered beforehand, as its administrators do; GET /-/clients gives their ids and secrets
//   secret      what every client secret is
//   documents   {URL: client ID metadata document, or keys}: what it finds there, without a network
//   openid      false: a server of OAuth alone, whose metadata has one place less
//   accessSeconds
//
// Besides the provider: /sign-in and /consent for a browser; /rs wants a token for itself (Bearer or DPoP), and speaks MCP
// (mcp_resource.js); GET /-/forget-clients, /-/expire (the tokens that the resource has seen), /-/approve?code=C (the
// person types a device's code and says yes), /-/hold (token requests wait) and /-/release, /-/facts. No output but
// errors.

import http from 'node:http';
import { createHash } from 'node:crypto';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

import { Gate } from '../gate.js';
import { serveProtected } from '../mcp_resource.js';

const [, , home, port, text] = process.argv;
const options = JSON.parse(text || '{}');
const load = (file) => import(pathToFileURL(path.join(home, 'node_modules', file)).href);

const { betterAuth } = await load('better-auth/dist/auth/minimal.mjs');
const { memoryAdapter } = await load('@better-auth/memory-adapter/dist/index.mjs');
const { getAuthTables } = await load('@better-auth/core/dist/db/index.mjs');
const { jwt } = await load('better-auth/dist/plugins/jwt/index.mjs');
const { toNodeHandler, fromNodeHeaders } = await load('better-auth/dist/integrations/node.mjs');
const { oauthProvider, oauthDeviceAuthorization } = await load('@better-auth/oauth-provider/dist/index.mjs');
const { cimd } = await load('@better-auth/cimd/dist/index.mjs');
const jose = await load('jose/dist/webapi/index.js');

const origin = `http://127.0.0.1:${port}`;
const mount = options.path ?? '/api/auth';
const issuer = origin + mount;
const resource = `${origin}/rs`;
const scopes = [...(options.openid === false ? [] : ['openid', 'email']), 'offline_access', 'a', 'b'];
const facts = { token: 0, registered: 0 };
const gate = new Gate();

const database = {};
const settings = {
  baseURL: origin,
  basePath: mount,
  secret: 'a secret of the tests, which signs what goes through the browser',
  database: memoryAdapter(database),
  telemetry: { enabled: false },
  rateLimit: { enabled: false },
  logger: { level: 'error' },
  advanced: { cookiePrefix: `better-auth-${port}` },  // browsers keep the cookies of all ports of a host together
  emailAndPassword: {
    enabled: true,
    minPasswordLength: 1,
    // A good hash takes long, and nobody's password is kept here.
    password: { hash: async (word) => word, verify: async ({ hash, password }) => hash === password },
  },
  plugins: [
    jwt(),
    oauthProvider({
      loginPage: '/sign-in',
      consentPage: '/consent',
      scopes,
      resources: [{ identifier: resource, allowedScopes: scopes }],
      clientRegistrationDefaultResources: [resource],
      allowDynamicClientRegistration: true,
      allowUnauthenticatedClientRegistration: true,
      accessTokenExpiresIn: options.accessSeconds ?? 3600,
      clientPrivileges: async () => true,
      rateLimit: { token: false, authorize: false, introspect: false, revoke: false, register: false, userinfo: false },
      ...(options.secret ? { generateClientSecret: () => options.secret } : {}),
      silenceWarnings: { oauthAuthServerConfig: true, openidConfig: true },
    }),
    cimd({
      metadataProfile: 'mcp-2026-07-28',
      async fetchClientMetadataResource(url) {
        const document = options.documents?.[url];
        if (!document) throw new Error(`nothing at ${url}`);
        return new Response(JSON.stringify(document), { headers: { 'content-type': 'application/json' } });
      },
    }),
    oauthDeviceAuthorization({ verificationUri: '/device', interval: '1s' }),
  ],
};
for (const table of Object.values(getAuthTables(settings))) database[table.modelName] = [];
const auth = betterAuth(settings);
await auth.$context;

const person = { name: 'somebody', email: 'somebody@example.com', password: 'x' };
const signedUp = await auth.api.signUpEmail({ body: person, asResponse: true });
const cookies = signedUp.headers.getSetCookie().map((each) => each.split(';')[0]).join('; ');
const clients = [];
for (const client of options.clients ?? []) {
  const made = await auth.api.adminCreateOAuthClient({ body: client, headers: new Headers({ cookie: cookies }) });
  database.oauthClientResource.push({
    id: made.client_id, clientId: made.client_id, resourceId: resource, createdAt: new Date(),
  });
  clients.push(made);
}

// --- the pages: forms for the browser, JSON for the provider

const escaped = (value) => value.replace(/[&<>"]/g, (each) => `&#${each.charCodeAt(0)};`);

function page(response, action, query, more) {
  const asked = `<input type="hidden" name="oauth_query" value="${escaped(query)}">`;
  response.writeHead(200, { 'Content-Type': 'text/html' });
  response.end(`<title>${action.slice(1)}</title><form method="post" action="${action}">${asked}${more}</form>`);
}

async function carry(place, body, request, response) {
  const answer = await auth.handler(new Request(issuer + place, {
    method: 'POST',
    headers: {
      'content-type': 'application/json', accept: 'application/json', origin, cookie: request.headers.cookie ?? '',
    },
    body: JSON.stringify(body),
  }));
  const said = await answer.json().catch(() => null);
  const next = said?.url ?? said?.redirect_uri;
  if (!answer.ok || !next) {
    response.writeHead(answer.ok ? 500 : answer.status, { 'Content-Type': 'text/plain' });
    return response.end(JSON.stringify(said));
  }
  response.writeHead(303, { Location: next, 'Set-Cookie': answer.headers.getSetCookie() });
  return response.end();
}

async function formOf(request) {
  let body = '';
  for await (const piece of request) body += piece;
  return new URLSearchParams(body);
}

async function servePage(url, request, response) {
  const query = url.search.slice(1);
  if (request.method === 'GET' && url.pathname === '/sign-in') {
    return page(response, '/sign-in', query, '<input name="login"><input name="password"><button>Sign in</button>');
  }
  if (request.method === 'GET' && url.pathname === '/consent') {
    return page(response, '/consent', query, `<button>Yes</button><a href="/consent/abort?${escaped(query)}">no</a>`);
  }
  if (request.method === 'GET') return carry('/oauth2/consent', { accept: false, oauth_query: query }, request, response);
  const form = await formOf(request);
  const asked = { oauth_query: form.get('oauth_query') };
  if (url.pathname === '/consent') return carry('/oauth2/consent', { accept: true, ...asked }, request, response);
  const who = { email: `${form.get('login')}@example.com`, password: form.get('password') };
  return carry('/sign-in/email', { ...who, ...asked }, request, response);
}

// --- the resource

const keys = jose.createLocalJWKSet(await auth.api.getJwks());
const seen = new Set();
const expired = new Set();

function refuse(response, scheme, error) {
  const challenge = error ? ` error="${error}",` : '';
  response.writeHead(401, {
    'WWW-Authenticate': `${scheme}${challenge} resource_metadata="${origin}/.well-known/oauth-protected-resource/rs"`,
  }).end();
}

async function serveResource(request, response) {
  const [scheme, value] = (request.headers.authorization ?? '').split(' ');
  if (!value) return refuse(response, 'Bearer', '');
  if (expired.has(value)) return refuse(response, scheme, 'invalid_token');
  seen.add(value);
  let token;
  try {
    const { payload } = await jose.jwtVerify(value, keys, { issuer, audience: resource });
    if (payload.cnf?.jkt) {
      const proof = await jose.jwtVerify(request.headers.dpop ?? '', jose.EmbeddedJWK, { typ: 'dpop+jwt' });
      const ath = createHash('sha256').update(value).digest('base64url');
      const jkt = await jose.calculateJwkThumbprint(proof.protectedHeader.jwk);
      if (scheme !== 'DPoP' || jkt !== payload.cnf.jkt || proof.payload.ath !== ath || proof.payload.htu !== resource) {
        return refuse(response, 'DPoP', 'invalid_dpop_proof');
      }
    } else if (scheme !== 'Bearer') return refuse(response, 'Bearer', 'invalid_token');
    token = { client: payload.azp ?? payload.client_id, scope: payload.scope };
  } catch {
    return refuse(response, scheme, 'invalid_token');
  }
  return serveProtected(request, response, token);
}

// --- all together

function inJson(response, value) {
  response.writeHead(200, { 'Content-Type': 'application/json' }).end(JSON.stringify(value));
}

const provider = toNodeHandler(auth);

const server = http.createServer(async (request, response) => {
  const url = new URL(request.url, origin);
  try {
    if (url.pathname === '/rs') return await serveResource(request, response);
    if (url.pathname === '/.well-known/oauth-protected-resource/rs') {
      return inJson(response, { resource, authorization_servers: [issuer], scopes_supported: ['a', 'b'] });
    }
    if (url.pathname === '/-/clients') return inJson(response, clients);
    if (url.pathname === '/-/facts') return inJson(response, facts);
    if (url.pathname === '/-/forget-clients') {
      for (const table of ['oauthClient', 'oauthClientResource']) database[table].length = 0;
      return inJson(response, facts);
    }
    if (url.pathname === '/-/expire') {
      for (const token of seen) expired.add(token);
      return inJson(response, facts);
    }
    if (url.pathname === '/-/approve') {
      const headers = new Headers({ cookie: cookies });
      const userCode = url.searchParams.get('code');
      await auth.api.deviceVerify({ query: { user_code: userCode }, headers });
      return inJson(response, await auth.api.deviceApprove({ body: { userCode }, headers }));
    }
    if (url.pathname === '/-/hold' || url.pathname === '/-/release') {
      if (url.pathname === '/-/hold') gate.shut();
      else gate.open();
      return inJson(response, facts);
    }
    if (/^\/(sign-in|consent)(\/|$)/.test(url.pathname)) return await servePage(url, request, response);
    if (url.pathname === `${mount}/oauth2/token`) {
      facts.token += 1;
      await gate.passed();
    }
    if (url.pathname === `${mount}/oauth2/register`) facts.registered += 1;
    return await provider(request, response);
  } catch (error) {
    console.error(error);
    return response.writeHead(500).end();
  }
});
server.listen(Number(port), '127.0.0.1');
