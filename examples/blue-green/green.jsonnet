// The track `green` of service `store`, with the next version. It gets no clients until a switch gives it some:
//   borgctl submit examples/blue-green/green.jsonnet
//   borgctl service switch store --to green --step 25 --every 60s --wait
// The clients return to `blue` by themselves if a task of `green` fails, and by hand with `--to blue`.
local blue = import 'blue.jsonnet';

blue {
  name: 'store-green',
  labels+: { track: 'green' },
  task+: { env: { VERSION: '2' } },
}
