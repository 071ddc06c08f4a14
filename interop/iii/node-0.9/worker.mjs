// The worker of the quickstart, written for SDK 0.9: functions are named by an object.
import { registerWorker } from 'iii-sdk'

const iii = registerWorker(process.env.III_URL ?? 'ws://localhost:49134')

iii.registerFunction({ id: 'tea::guide' }, async () => ({
  content: '# Tea\n\nGreen tea wants 80 degrees and two minutes.',
}))

iii.registerFunction({ id: 'tea::order' }, async ({ kind = 'black' }) => ({
  content: `Make one cup of ${kind} tea.`,
}))

await iii.trigger({
  function_id: 'skills::register',
  payload: {
    id: 'tea',
    skill:
      '# Tea\n\nMakes tea. Use when a user is thirsty.\n\n' +
      'See [the guide](iii://fn/tea/guide) for times and temperatures.\n',
  },
})

await iii.trigger({
  function_id: 'prompts::register',
  payload: {
    name: 'order-tea',
    description: 'Order a cup of tea.',
    arguments: [{ name: 'kind', description: 'Which tea', required: true }],
    function_id: 'tea::order',
  },
})
console.log('ready')
