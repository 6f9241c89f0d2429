#include "intarsia/debug/visualize.h"

#include <algorithm>
#include <map>
#include <set>

#include <torch/nn/module.h>

#include "intarsia/debug/groups_table.h"
#include "intarsia/debug/text_table.h"
#include "intarsia/tensor/dtensor.h"

namespace intarsia {
namespace {

// 0, 1, 2, 5 as "0-2, 5". Ascending.
std::string ranges(const std::vector<int64_t>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += std::to_string(numbers[i]);
    if (last > i) text += "-" + std::to_string(numbers[last]);
    i = last + 1;
  }
  return text;
}

std::string range(const Interval& interval) {
  if (interval.size() == 0) return "none";
  return interval.size() == 1 ? std::to_string(interval.begin)
                              : std::to_string(interval.begin) + "-" + std::to_string(interval.end - 1);
}

// The coordinates of all ranks of a mesh, in the order of ranks(group).
std::vector<std::vector<int64_t>> coordinates(const DeviceMesh& mesh) {
  std::vector<std::vector<int64_t>> result;
  for (auto rank : mesh.ranks(0)) result.push_back(*mesh.coordinate_of(rank));
  return result;
}

// The pieces into which the ranks' shards divide one dim.
std::vector<Interval> pieces_of(const Layout& layout, int64_t dim, int64_t size) {
  std::set<int64_t> cuts = {0, size};
  for (auto& coordinate : coordinates(layout.mesh())) {
    for (auto& held : intervals_of(layout, dim, size, coordinate)) cuts.insert({held.begin, held.end});
  }
  std::vector<Interval> pieces;
  for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) pieces.push_back({*cut, *std::next(cut)});
  if (pieces.empty()) pieces.push_back({0, 0});
  return pieces;
}

bool holds(const Intervals& held, const Interval& piece) {
  return std::any_of(held.begin(), held.end(),
                     [&](auto& own) { return own.begin <= piece.begin && piece.end <= own.end && piece.size() > 0; });
}

// Rows and columns of pieces, and the names of the ranks that hold each.
struct Picture {
  std::vector<std::string> rows, columns;
  std::vector<std::vector<std::string>> cells;
  std::vector<int64_t> idle;  // ranks that hold nothing
};

Picture picture_of(const at::Tensor& tensor, const Layout& layout, int64_t group) {
  auto& mesh = layout.mesh();
  auto places = coordinates(mesh);
  std::vector<std::vector<Interval>> pieces(2, {{0, 1}});  // a missing dim has one piece, which every rank holds
  auto first = 2 - tensor.dim();
  for (int64_t d = 0; d < tensor.dim(); ++d) pieces[first + d] = pieces_of(layout, d, tensor.size(d));
  auto has = [&](size_t place, int64_t side, const Interval& piece) {
    auto d = side - first;
    return d < 0 || holds(intervals_of(layout, d, tensor.size(d), places[place]), piece);
  };
  Picture picture;
  std::set<int64_t> busy;
  for (auto& row : pieces[0]) {
    picture.rows.push_back(first > 0 ? "" : range(row));
    auto& cells = picture.cells.emplace_back();
    for (auto& column : pieces[1]) {
      std::vector<int64_t> ranks;
      for (size_t place = 0; place < places.size(); ++place) {
        if (has(place, 0, row) && has(place, 1, column)) ranks.push_back(mesh.ranks(group)[place]);
      }
      std::sort(ranks.begin(), ranks.end());
      busy.insert(ranks.begin(), ranks.end());
      cells.push_back(ranges(ranks));
    }
  }
  for (auto& column : pieces[1]) picture.columns.push_back(first > 1 ? "" : range(column));
  for (auto rank : mesh.ranks(group)) {
    if (!busy.count(rank)) picture.idle.push_back(rank);
  }
  std::sort(picture.idle.begin(), picture.idle.end());
  return picture;
}

std::string padded(const std::string& text, size_t width) { return text + std::string(width - text.size(), ' '); }

// ┌────┬────┐ and the like, for columns of the given widths.
std::string rule_line(const std::vector<size_t>& widths, const char* left, const char* middle, const char* right) {
  std::string line = left;
  for (size_t i = 0; i < widths.size(); ++i) {
    for (size_t k = 0; k < widths[i] + 2; ++k) line += "─";
    line += i + 1 < widths.size() ? middle : right;
  }
  return line;
}

std::string draw(const Picture& picture, bool colour) {
  constexpr int kColours = 6;  // 41 to 46: the backgrounds except black and white
  std::map<std::string, int> colours;
  size_t margin = 0;
  for (auto& row : picture.rows) margin = std::max(margin, row.size());
  std::vector<size_t> widths;
  for (size_t j = 0; j < picture.columns.size(); ++j) {
    widths.push_back(picture.columns[j].size());
    for (auto& cells : picture.cells) widths[j] = std::max(widths[j], cells[j].size());
  }
  std::string indent(margin + 3, ' '), text = indent;
  for (size_t j = 0; j < widths.size(); ++j) text += "  " + padded(picture.columns[j], widths[j] + 1);
  text.erase(text.find_last_not_of(' ') + 1);
  text += (text.empty() ? "" : "\n") + indent + rule_line(widths, "┌", "┬", "┐") + "\n";
  for (size_t i = 0; i < picture.rows.size(); ++i) {
    if (i) text += indent + rule_line(widths, "├", "┼", "┤") + "\n";
    text += "  " + padded(picture.rows[i], margin) + " │";
    for (size_t j = 0; j < widths.size(); ++j) {
      auto& cell = picture.cells[i][j];
      auto shown = " " + padded(cell, widths[j]) + " ";
      auto number = colours.try_emplace(cell, colours.size()).first->second;
      text += colour ? "\033[30;" + std::to_string(41 + number % kColours) + "m" + shown + "\033[0m" : shown;
      text += "│";
    }
    text += "\n";
  }
  text += indent + rule_line(widths, "└", "┴", "┘") + "\n";
  if (!picture.idle.empty()) text += "  nothing on " + ranges(picture.idle) + "\n";
  return text;
}

// [2, 3] on 0-1, [1, 3] on 2; without the ranks if all shapes are equal.
std::string local_shapes(const at::Tensor& tensor) {
  auto& layout = layout_of(tensor);
  auto& mesh = layout.mesh();
  auto places = coordinates(mesh);
  std::vector<std::pair<std::string, std::vector<int64_t>>> shapes;  // in the order in which they are met
  for (int64_t group = 0; group < mesh.group_count(); ++group) {
    for (size_t place = 0; place < places.size(); ++place) {
      auto shape = c10::str(c10::IntArrayRef(local_shape(layout, tensor.sizes(), places[place])));
      auto same = std::find_if(shapes.begin(), shapes.end(), [&](auto& known) { return known.first == shape; });
      if (same == shapes.end()) same = shapes.insert(same, {shape, {}});
      same->second.push_back(mesh.ranks(group)[place]);
    }
  }
  if (shapes.size() == 1) return shapes[0].first;
  std::string text;
  for (auto& [shape, ranks] : shapes) {
    std::sort(ranks.begin(), ranks.end());
    text += (text.empty() ? "" : ", ") + shape + " on " + ranges(ranks);
  }
  return text;
}

}  // namespace

std::string visualize_sharding(const at::Tensor& tensor, bool colour) {
  TORCH_CHECK_TYPE(is_dtensor(tensor), "[visualize_sharding] needs a distributed tensor, but got ",
                   tensor.defined() ? c10::str("a plain one of shape ", tensor.sizes()) : "an undefined one",
                   ". Make one with distribute_tensor.");
  TORCH_CHECK_VALUE(tensor.dim() <= 2, "[visualize_sharding] the tensor of shape ", tensor.sizes(), " has ",
                    tensor.dim(), " dims, and a picture has two. Use describe(tensor), or visualize a slice of it.");
  auto& layout = layout_of(tensor);
  auto text = c10::str(tensor.sizes()) + " as " + str(layout) + "\n";
  for (int64_t group = 0; group < layout.mesh().group_count(); ++group) {
    text += draw(picture_of(tensor, layout, group), colour);
  }
  if (layout.has_partial()) text += "  every rank holds a term: the value is the reduction over the axes with P\n";
  return text;
}

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined";
  auto form = c10::str(tensor.sizes()) + " " + c10::toString(tensor.scalar_type());
  if (!is_dtensor(tensor)) return form + " plain";
  return form + " " + str(layout_of(tensor)) + ": " + local_shapes(tensor);
}

std::string describe(ConstModuleRef given) {
  auto& module = *given;
  TextTable table({"name", "shape", "dtype", "placements", "local shape"});
  auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    std::vector<std::string> row = {name, c10::str(tensor.sizes()), c10::toString(tensor.scalar_type()), "plain", ""};
    if (is_dtensor(tensor)) row[3] = str(placements_of(tensor)), row[4] = local_shapes(tensor);
    table.add(std::move(row));
  };
  std::vector<std::pair<std::string, at::Tensor>> parameters;
  for (auto& item : module.named_parameters()) {
    add(item.key(), item.value());
    parameters.emplace_back(item.key(), item.value());
  }
  for (auto& item : module.named_buffers()) add(item.key(), item.value());
  auto groups = groups_table(parameters);
  return table.text() + (groups.empty() ? "" : "\n" + groups);
}

}  // namespace intarsia
