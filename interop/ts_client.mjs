// A host on the official TypeScript SDK: ts_client.mjs TRANSPORT ERA EXPECTED-SKILLS FOLDER TARGET…
//
// Prints `ok STEP` for each step that passes, and exits with an error at the first that fails.

import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFile, writeFile } from 'node:fs/promises';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport, getDefaultEnvironment } from '@modelcontextprotocol/client/stdio';
import { SkillsClient } from '@modelcontextprotocol/client/ext/skills';

const [transportName, era, expected, folder, ...target] = process.argv.slice(2);
const modern = era === '2026-07-28';
const ok = (step) => console.log(`ok ${step}`);
const sha256 = (bytes) => `sha256:${createHash('sha256').update(bytes).digest('hex')}`;

const notes = [];
const client = new Client(
  { name: 'interop', version: '1.0.0' },
  {
    versionNegotiation: modern ? { mode: { pin: era } } : { mode: 'legacy' },
    ...(!modern && { supportedProtocolVersions: [era] }),
    capabilities: { extensions: { 'io.modelcontextprotocol/skills': {} } },
  },
);
for (const method of ['resources/list_changed', 'resources/updated', 'prompts/list_changed']) {
  client.setNotificationHandler(`notifications/${method}`, (note) => {
    notes.push(note);
  });
}

const token = process.env.INTEROP_TOKEN;
const transport =
  transportName === 'stdio'
    ? new StdioClientTransport({
        command: target[0],
        args: target.slice(1),
        env: { ...getDefaultEnvironment(), REPERTOIRE_HOME: process.env.REPERTOIRE_HOME, REPERTOIRE_NO_SYSTEM_SKILLS: "1" },
      })
    : new StreamableHTTPClientTransport(new URL(target[0]), {
        requestInit: token ? { headers: { Authorization: `Bearer ${token}` } } : undefined,
      });

// Accepts any result, because the SDK has no schemas for the methods of skills.
const asIs = { '~standard': { version: 1, vendor: 'interop', validate: (value) => ({ value }) } };
const ask = (method, params = {}) => client.request({ method, params }, asIs);
const fresh = { cacheMode: 'bypass' };

async function until(what, condition, millis = 10_000) {
  const start = performance.now();
  while (!condition()) {
    assert.ok(performance.now() - start < millis, `waited too long for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
  return performance.now() - start;
}

async function bytesOf(uri) {
  const { contents } = await client.readResource({ uri }, fresh);
  assert.equal(contents.length, 1);
  assert.equal(contents[0].uri, uri);
  return contents[0].text !== undefined
    ? Buffer.from(contents[0].text, 'utf8')
    : Buffer.from(contents[0].blob, 'base64');
}

await client.connect(transport, { timeout: 30_000 });
assert.equal(client.getNegotiatedProtocolVersion(), era);
const extension = client.getServerCapabilities().extensions['io.modelcontextprotocol/skills'];
assert.equal(extension.directoryRead, true);
assert.match(client.getInstructions(), /skills_list/);
ok('connect');

const entries = new Map();
let pages = 0;
for (let cursor; pages === 0 || cursor; pages++) {
  const page = await ask('skills/list', cursor ? { cursor } : {});
  if (modern) assert.equal(page.cacheScope, 'private');
  else assert.equal(page.cacheScope, undefined);
  for (const entry of page.skills) {
    assert.ok(!entries.has(entry.uri), `${entry.uri} is on two pages`);
    entries.set(entry.uri, entry);
  }
  cursor = page.nextCursor;
}
assert.equal(entries.size, Number(expected));
assert.ok(pages > 40);
ok(`page through ${entries.size} skills`);

const listed = new Set();
for (let cursor, first = true; first || cursor; first = false) {
  const page = await client.request({ method: 'resources/list', params: cursor ? { cursor } : {} });
  for (const resource of page.resources) listed.add(resource.uri);
  cursor = page.nextCursor;
}
for (const uri of entries.keys()) assert.ok(listed.has(uri), `${uri} is no resource`);
assert.ok(listed.has('skill://index.json') && listed.has('iii://skills'));
assert.ok(!listed.has('skill://picture/assets/dot.png'), 'supporting files are not listed');
ok('list resources');

const { skill } = await ask('skills/get', { uri: 'skill://picture/SKILL.md' });
assert.deepEqual(skill, entries.get('skill://picture/SKILL.md'));
for (const file of skill.resources) {
  const bytes = await bytesOf(file.uri);
  assert.equal(bytes.length, file.size);
  assert.equal(sha256(bytes), file.digest);
}
ok('get a skill and verify its files');

const picture = await bytesOf('skill://picture/assets/dot.png');
assert.deepEqual(picture, await readFile(`${folder}/picture/assets/dot.png`));
ok('read a binary file');

const verified = await new SkillsClient(client).read(skill);
assert.ok(verified.verified);
ok("the SDK's own skills client verifies");

const directory = await ask('resources/directory/read', { uri: 'skill://picture' });
const children = directory.resources.map((r) => [r.name, r.mimeType]);
assert.deepEqual(children.find(([name]) => name === 'assets'), ['assets', 'inode/directory']);
ok('read a directory');

const document = (await bytesOf('skill://picture/SKILL.md')).toString();
const notesText = (await bytesOf('skill://picture/notes.md')).toString();
const prompt = await client.getPrompt({ name: 'picture' });
assert.equal(prompt.messages.length, 1);
assert.equal(prompt.messages[0].content.text, `${document}\n--- notes.md ---\n${notesText}`);
ok('a prompt has the bytes of the resources');

const uris = ['skill://picture/SKILL.md', 'iii://live'];
const fetched = await client.callTool({ name: 'skill__fetch', arguments: { uris } });
const live = (await bytesOf('iii://live')).toString();
assert.equal(fetched.content[0].text, `# ${uris[0]}\n\n${document}\n\n---\n\n# ${uris[1]}\n\n${live}`);
const wrong = await client.callTool({ name: 'skill__fetch', arguments: { uri: 'file:///etc' } });
assert.equal(wrong.isError, true);
const some = await client.callTool({ name: 'skills_list', arguments: {} });
assert.match(some.content[0].text, /call again with cursor/);
ok('call the tools');

const completed = await client.complete({
  ref: { type: 'ref/resource', uri: 'skill://{+id}/SKILL.md' },
  argument: { name: 'id', value: 'pict' },
});
assert.deepEqual(completed.completion.values, ['picture']);
ok('complete an id');

await assert.rejects(bytesOf('skill://missing/SKILL.md'), /skill:\/\/missing\/SKILL.md/);
await assert.rejects(ask('skills/get', { uri: 'skill://missing/SKILL.md' }), /missing\/SKILL/);
ok('unknown URIs are named');

const uri = 'skill://live/SKILL.md';
let subscription;
if (modern) {
  subscription = await client.listen({
    resourcesListChanged: true,
    promptsListChanged: true,
    resourceSubscriptions: [uri],
  });
} else {
  await client.subscribeResource({ uri });
}
let best = Infinity;
for (let round = 0; round < 3 && best > 1000; round++) {
  notes.length = 0;
  const body = await readFile(`${folder}/live/SKILL.md`, 'utf8');
  await writeFile(`${folder}/live/SKILL.md`, `${body}\nEdited by ${transportName} ${era}.\n`);
  const notified = (method) => notes.some((n) => n.method === `notifications/${method}`);
  const updated = () => notes.some((n) => n.params?.uri === uri);
  const time = await until('the notifications', () => {
    return updated() && notified('resources/list_changed') && notified('prompts/list_changed');
  });
  best = Math.min(best, time);
}
assert.ok(best <= 1000, `the fastest notification took ${best} ms`);
assert.match((await bytesOf(uri)).toString(), new RegExp(`Edited by ${transportName} ${era}`));
ok(`an edit on disk is reported in ${Math.round(best)} ms`);

if (subscription) await subscription.close();
else await client.unsubscribeResource({ uri });
if (transport.sessionId) await transport.terminateSession();
await client.close();
ok('close');
