// A worker with a skill, a section made by a function, and a slash-command.
//
// Start a hub with `repertoire serve`, then: npm install && node worker.mjs
import { readFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { registerWorker } from 'iii-sdk'

const url = process.env.III_URL || 'ws://127.0.0.1:49134'

// The token in III_TOKEN, or the user's own, which a server with --require-token keeps in a file. That
// one is sent to this machine only.
function connectionToken() {
  if (process.env.III_TOKEN) return process.env.III_TOKEN
  if (!/^ws:\/\/(127\.0\.0\.1|localhost|\[::1\]):/.test(url)) return undefined
  const account = process.env.REPERTOIRE_HOME || join(homedir(), '.repertoire')
  try {
    return readFileSync(join(account, 'local-token'), 'utf8').trim()
  } catch {
    return undefined
  }
}

const token = connectionToken()
const iii = registerWorker(url, {
  headers: token ? { Authorization: `Bearer ${token}` } : {},
})

iii.registerFunction(
  'tea::guide',
  async () => ({ content: '# Tea\n\nGreen tea wants 80 degrees and two minutes.' }),
  { description: 'How to make tea.' },
)
iii.registerFunction(
  'tea::order',
  async (given) => ({ content: `Make one cup of ${given?.kind ?? 'black'} tea.` }),
  { description: 'Renders the order.' },
)

// Retries until it succeeds: the registry may start or restart after this worker.
async function register(functionId, payload) {
  let pause = 500
  const begun = Date.now()
  for (;;) {
    try {
      return await iii.trigger({ function_id: functionId, payload, timeoutMs: 5000 })
    } catch (error) {
      const later = ['function_not_found', 'TIMEOUT'].includes(error.code)
      if (!later || Date.now() - begun > 180_000) throw error
      await new Promise((wake) => setTimeout(wake, pause))
      pause = Math.min(pause * 2, 30_000)
    }
  }
}

await register('skills::register', {
  id: 'tea',
  skill:
    '# Tea\n\nMakes tea. Use when a user is thirsty.\n\n' +
    'See [the guide](iii://fn/tea/guide) for times and temperatures.\n',
})
await register('prompts::register', {
  name: 'order-tea',
  description: 'Order a cup of tea.',
  arguments: [{ name: 'kind', description: 'Which tea', required: true }],
  function_id: 'tea::order',
})
console.log('ready')

for (const signal of ['SIGINT', 'SIGTERM']) {
  process.once(signal, async () => {
    await iii.shutdown()
    process.exit(0)
  })
}
