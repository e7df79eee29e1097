// Short names of plans, as labels: topr(1%) golomb+log_quant.
// The preset of a plan, if it has no other plan.
const presets = new Map(rows.filter((row) => row.preset && rows.every((other) => other.preset !== row.preset || other.plan === row.plan)).map((row) => [row.plan, row.preset]));

// Parameters that all plans with a codec share, as "bloom policy": {values}.
const parameters = new Map();
for (const plan of plans)
  for (const [, name, list] of plan.matchAll(/([\w]+)\(([^()]*)\)/g))
    for (const [key, value] of list.split(",").map((text) => text.split("="))) parameters.set(`${name} ${key}`, (parameters.get(`${name} ${key}`) ?? new Set()).add(value));

// topr(ratio=0.01) is topr(1%), golomb(adaptive=1) golomb(adaptive), bloom(policy=p0,fpr=0.01) bloom(0.01) if all are of p0.
const shortValue = ([key, value]) => ["ratio", "error"].includes(key) && Number(value) <= 1 ? `${digits(100 * value)}%` : value === "1" || value === "on" ? key : value === "0" || value === "off" ? `${key}=${value}` : value ?? key;
const shortStage = (text) => text.replace(/([\w]+)\(([^()]*)\)/g, (_, name, list) => {
  const all = list.split(",").map((part) => part.split("=")), varied = all.filter(([key]) => parameters.get(`${name} ${key}`)?.size > 1);
  return `${name}(${(varied.length ? varied : all.slice(-1)).map(shortValue).join(",")})`;
});

function labelled(plan, without) {
  const found = new Map([...stages(plan)].filter(([stage]) => !without.has(stage)));
  const dense = found.get("index") === "all" && ["none", undefined].includes(stages(plan).get("sparsify"));
  const coded = dense ? `dense ${shortStage(found.get("value") ?? "").replace(/^half\((.*)\)$/, "$1").replace(/^half$/, "f16")}` : ["index", "value"].filter((stage) => found.has(stage)).map((stage) => shortStage(found.get(stage))).join("+");
  const others = [...found].filter(([stage]) => !["index", "value", "sparsify"].includes(stage)).map(([stage, text]) => text === undefined || text === stage ? stage : `${stage}=${shortStage(text)}`);
  return [dense || !found.has("sparsify") ? "" : shortStage(found.get("sparsify")), coded, ...others].filter(Boolean).join(" ");
}

// Stages that no label needs: without them the labels of two plans still differ. What varies stays.
const unneeded = new Set();
const distinct = (without) => new Set(plans.map((plan) => labelled(plan, without))).size === plans.length && plans.every((plan) => labelled(plan, without));
for (const stage of [...unique(plans.flatMap((plan) => [...stages(plan).keys()])).filter((stage) => !["index", "value", "sparsify"].includes(stage)), "sparsify"])
  if (plans.length > 1 && distinct(new Set([...unneeded, stage]))) unneeded.add(stage);
const shortNames = new Map(plans.map((plan) => [plan, presets.get(plan) ?? labelled(plan, unneeded)]));
const shortName = (plan) => shortNames.get(plan) ?? plan;

// Both ends tell names apart, so what is cut off is the middle.
function cut(text, length) {
  const tail = Math.floor((length - 1) / 2);
  return text.length > length ? `${text.slice(0, length - 1 - tail)}…${text.slice(text.length - tail)}` : text;
}
