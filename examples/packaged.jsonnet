// A program of one's own, installed on every machine that runs it. First put it into the cell's store:
//
//   mkdir -p greeter/bin
//   printf '#!/bin/sh\nwhile :; do echo "Hello from task $BORG_INDEX"; sleep 10; done\n' > greeter/bin/greet
//   chmod +x greeter/bin/greet
//   borgctl package upload greeter --name greeter --tag v1
//   borgctl submit examples/packaged.jsonnet
//
// The job runs what greeter@v1 means at that moment. After another upload under the same tag, `borgctl update` with this
// file rolls its tasks over to the new content.
local borg = import 'borg.libsonnet';

borg.job('greeter') {
  tasks: 2,
  task+: {
    packages: ['greeter@v1'],
    command: ['$(packages)/greeter/bin/greet'],
    limit: { cpu: '50m', ram: '32Mi', disk: '32Mi' },
  },
}
