// Counts the words of a file with a workflow:  borgctl submit examples/map-reduce.jsonnet
//
//   split ── 8 ranges of the file ──► map: one job per range ── the counts of each ──► reduce: the sums
//
// `borgctl workflow show map-reduce` shows its nodes, and `borgctl logs map-reduce-reduce/0` the words that are most frequent.
// Each node hands a small result (at most 4 KiB) to the nodes after it. Larger data goes into packages.
local lib = |||
  import collections, json, os, re, urllib.request

  def set_result(value):
      headers = {"Authorization": "Bearer " + open(os.environ["BORG_IDENTITY_FILE"]).read().strip(), "Content-Type": "application/json"}
      data = json.dumps(value, separators=(",", ":")).encode()
      urllib.request.urlopen(urllib.request.Request(os.environ["WORKFLOW_RESULT_URL"], data, headers, method="PUT"))
|||;

local split = |||
  size, parts = os.path.getsize(os.environ["FILE"]), int(os.environ["PARTS"])
  with open(os.environ["FILE"], "rb") as file:
      ends = []
      for part in range(1, parts):
          file.seek(size * part // parts)
          file.readline()  # a range ends at the end of a line
          ends.append(min(size, file.tell()))
  set_result([{"from": first, "to": last} for first, last in zip([0, *ends], [*ends, size])])
|||;

local map = |||
  item = json.loads(os.environ["ITEM"])
  with open(os.environ["FILE"], "rb") as file:
      file.seek(item["from"])
      text = file.read(item["to"] - item["from"]).decode()
  set_result(collections.Counter(re.findall("[a-z]+", text.lower())))
|||;

local reduce = |||
  total = collections.Counter()
  for counts in json.loads(os.environ["RESULT_MAP"]):
      total.update(counts)
  for word, number in total.most_common(10):
      print(number, word)
  set_result({"words": sum(total.values()), "different": len(total), "most": dict(total.most_common(20))})
|||;

local job(script) = {
  api: 'read',  // so that the task has an identity with which it may set its result
  task: {
    command: ['python3', '-c', lib + script],
    limit: { cpu: '100m', ram: '64Mi', disk: '16Mi' },
    restart: { on: 'never' },
  },
};

{
  apiVersion: 'borg/v1',
  kind: 'Workflow',
  name: 'map-reduce',
  parameters: { FILE: '/usr/share/common-licenses/Apache-2.0', PARTS: 8 },
  nodes: {
    split: { job: job(split) },
    map: { job: job(map), for_each: { result_of: 'split', at_most: 64 }, retries: 2 },
    reduce: { job: job(reduce), after: { map: 'succeeded' } },
  },
}
