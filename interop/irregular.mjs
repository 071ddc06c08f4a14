// The official TypeScript SDK on skills as people write them: irregular.mjs URL EXPECTED
//
// Prints `ok STEP` for each step that passes, and exits with an error at the first that fails.

import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { SkillsClient } from '@modelcontextprotocol/client/ext/skills';

const [url, expectedFile] = process.argv.slice(2);
const expected = JSON.parse(await readFile(expectedFile, 'utf8'));
const ok = (step) => console.log(`ok ${step}`);

for (const era of ['2026-07-28', '2025-11-25']) {
  const modern = era === '2026-07-28';
  const client = new Client(
    { name: 'interop', version: '1.0.0' },
    {
      versionNegotiation: modern ? { mode: { pin: era } } : { mode: 'legacy' },
      ...(!modern && { supportedProtocolVersions: [era] }),
      capabilities: { extensions: { 'io.modelcontextprotocol/skills': {} } },
    },
  );
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  const skills = new SkillsClient(client);
  const listing = await skills.list();
  assert.deepEqual(
    listing.skills.map((skill) => skill.uri).sort(),
    expected.filter((one) => one.listed).map((one) => one.uri).sort(),
  );
  ok(`list ${listing.skills.length} skills, ${era}`);

  for (const skill of listing.skills) {
    const read = await skills.read(skill);
    assert.ok(read.verified, skill.uri);
    for (const file of skill.resources) {
      if (file.uri !== skill.uri) await client.readResource({ uri: file.uri });
    }
  }
  ok(`verify what is listed, ${era}`);

  for (const { uri, document } of expected) {
    const { contents } = await client.readResource({ uri });
    if (document !== null) assert.equal(contents[0].text, document, uri);
  }
  ok(`read what is not listed, ${era}`);
  await client.close();
}
