// The colour of an index codec and the shape of a value codec are those of its name, in every report.
const COLOURS = 8;
const SHAPES = [["circle"], ["rect"], ["triangle"], ["rectRot"], ["star"], ["triangle", 180], ["crossRot"], ["rectRounded"], ["triangle", 90], ["cross"], ["triangle", 270], ["line"]];
const INDEX_CODECS = ["golomb", "bloom", "all", "auto", "raw", "rice", "gap_huffman", "none",
  "elias_fano", "delta_varint", "delta_bitpack", "delta_pfor", "bitmap", "rle", "seeded", "block"];  // the second half: hollow
const VALUE_CODECS = ["raw", "log_quant", "qsgd", "half", "uniform_quant", "auto", "lloyd", "none", "ternary", "natural", "sketch", "sign"];

// Map of names to places below `places`: a name's place in `known`, else one that its letters choose, free if one is.
function placesOf(names, known, places) {
  const found = new Map(), taken = new Set();
  const take = (name, place) => (found.set(name, place), taken.add(place));
  for (const name of names) if (known.includes(name)) take(name, known.indexOf(name));
  for (const name of names.filter((other) => !known.includes(other)).sort()) {
    let place = [...name].reduce((hash, c) => (31 * hash + c.codePointAt(0)) % 65521, 7) % places;
    while (taken.has(place) && taken.size < places) place = (place + 1) % places;
    take(name, place);
  }
  return found;
}
const codecOf = (row, stage) => codec(row.stages.get(stage));
const indexPlaces = placesOf(unique(rows.map((row) => codecOf(row, "index"))), INDEX_CODECS, INDEX_CODECS.length);
const valuePlaces = placesOf(unique(rows.map((row) => codecOf(row, "value"))), VALUE_CODECS, SHAPES.length);

// {pointStyle, rotation, backgroundColor, borderColor, borderWidth} of an index and a value codec.
function markStyle(index, value) {
  const place = indexPlaces.get(index) ?? 0, shade = colour(`c${place % COLOURS + 1}`), [pointStyle, rotation = 0] = SHAPES[valuePlaces.get(value) ?? 0];
  const hollow = place >= COLOURS, open = ["star", "cross", "crossRot", "line"].includes(pointStyle);
  return { pointStyle, rotation, backgroundColor: hollow ? colour("ground") : shade, borderColor: hollow || open ? shade : colour("ground"), borderWidth: hollow || open ? 2 : 1 };
}
