// Your own program, installed on every machine that runs it. First upload it to the cell's store:
//
//   mkdir -p greeter/bin
//   printf '#!/bin/sh\nwhile :; do echo "Hello from task $BORG_INDEX"; sleep 10; done\n' > greeter/bin/greet
//   chmod +x greeter/bin/greet
//   borgctl package upload greeter --name greeter --tag v1
//   borgctl submit examples/packaged.jsonnet
//
// The job runs the content that greeter@v1 has when you submit it. After another upload under the same tag, `borgctl update`
// with this file moves its tasks to the new content.
local borg = import 'borg.libsonnet';

borg.job('greeter') {
  tasks: 2,
  task+: {
    packages: ['greeter@v1'],
    command: ['$(packages)/greeter/bin/greet'],
    limit: { cpu: '50m', ram: '32Mi', disk: '32Mi' },
  },
}
