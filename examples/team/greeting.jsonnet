// A folder with the files of a team. Show what would change, then make the changes:
//   borgctl apply examples/team --owner team --dry-run
//   borgctl apply examples/team --owner team
// Delete a file, and end what it described:
//   borgctl apply examples/team --owner team --prune
// This file writes the config file `greeting` with the content of greeting.conf.
{
  apiVersion: 'borg/v1',
  kind: 'ConfigFile',
  name: 'greeting',
  content: importstr 'greeting.conf',
}
